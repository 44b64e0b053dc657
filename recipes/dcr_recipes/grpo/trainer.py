"""One GRPO step on FSDP2: rollouts, advantages, clipped loss, AdamW. Same seeds, same bits.

Every rank calls every method, in the same order. Legend: P prompt groups, G responses of a group,
L prompt tokens, T response tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dcr import observe
from dcr_recipes.grpo.checkpoint import Checkpoint
from dcr_recipes.grpo.loss import group_advantages, policy_terms, response_mask, token_logprobs
from dcr_recipes.grpo.metrics import StepMetrics, token_digest
from dcr_recipes.grpo.policy import Policy
from dcr_recipes.grpo.rollout import Responses, Rollouts
from dcr_recipes.grpo.sampler import Prompt
from dcr_recipes.grpo.seeds import response_seed
from dcr_recipes.grpo.settings import GrpoSettings
from dcr_recipes.grpo.shard_state import install
from dcr_recipes.grpo.tasks import Task


@dataclass(frozen=True, slots=True)
class Batch:
    """One step's experience, equal on every rank.

    ``tokens`` int64, the rollout's ``logprobs`` float32 and ``mask`` bool are [P, G, T]; ``rewards``
    and ``advantages`` are float64 [P, G].
    """

    prompts: tuple[Prompt, ...]
    tokens: torch.Tensor
    logprobs: torch.Tensor
    mask: torch.Tensor
    rewards: torch.Tensor
    advantages: torch.Tensor


class GrpoTrainer:
    """Trains one policy step by step. Has no clock and no connection: ``rollouts``, on rank 0 only, has.

    ``history`` has the metrics of every step since the run began, restored ones included.
    """

    def __init__(
        self, policy: Policy, settings: GrpoSettings, *, task: Task, rollouts: Rollouts | None
    ) -> None:
        self.policy = policy
        self.settings = settings
        self.history: list[StepMetrics] = []
        self._task = task
        self._rollouts = rollouts
        self._num_groups = settings.groups_per_rank(policy.world_size)

    @property
    def step(self) -> int:
        """Steps done so far; the weights are those after this step."""
        return self.history[-1].step if self.history else 0

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to ``checkpoint``: weights, optimizer, random state, history; sampling follows the step."""
        install(self.policy, checkpoint.state)
        self.history = list(checkpoint.meta.history)

    def rollout_and_train(self, step: int, version: int) -> StepMetrics:
        """Make experience with the served ``version`` and take optimizer step ``step`` (from 1) on it.

        Raises:
            IntegrityError: rollouts came from another version (rank 0).
            Unreachable: no runtime answered in time (rank 0).
        """
        assert step == self.step + 1, f"step {step} does not follow {self.step}"
        with observe.stage("trainer.rollout", step=step, version=version):
            batch = self._experience(step, version)
        with observe.stage("trainer.train", step=step):
            sums = self._accumulate_gradients(batch)
            grad_norm = self._apply_gradients()
            dist.all_reduce(sums, group=self.policy.mesh.get_group())
        metrics = _metrics(batch, sums, grad_norm, step=step, version=version)
        self.history.append(metrics)
        return metrics

    def _experience(self, step: int, version: int) -> Batch:
        prompts = self._task.source.prompts(step)
        tokens, logprobs = self._shared_responses(prompts, step, version)
        mask = response_mask(tokens.flatten(0, 1), self._task.eos_id).view_as(tokens)
        rewards = torch.stack(
            [self._task.reward.score(prompt, group) for prompt, group in zip(prompts, tokens, strict=True)]
        )
        return Batch(prompts, tokens, logprobs, mask, rewards, group_advantages(rewards))

    def _shared_responses(self, prompts: Sequence[Prompt], step: int, version: int) -> Responses:
        """Rank 0 asks the runtimes; all get the answer, as tensors."""
        shape = (len(prompts), self.settings.group_size, self.settings.response_tokens)
        tokens = torch.zeros(shape, dtype=torch.int64)
        logprobs = torch.zeros(shape, dtype=torch.float32)
        if self._rollouts is not None:
            seeds = [
                [response_seed(self.settings.seed, step, p, g) for g in range(shape[1])]
                for p in range(shape[0])
            ]
            groups = self._rollouts.rollout(prompts, seeds, version)
            torch.stack([group.tokens for group in groups], out=tokens)
            torch.stack([group.logprobs for group in groups], out=logprobs)
        group = self.policy.mesh.get_group()
        dist.broadcast(tokens, group_src=0, group=group)
        dist.broadcast(logprobs, group_src=0, group=group)
        return Responses(tokens, logprobs)

    def _accumulate_gradients(self, batch: Batch) -> torch.Tensor:
        """Backward over this rank's groups, one at a time; returns its sums [loss, gen_kl, clipped]."""
        self.policy.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(3, dtype=torch.float64)
        # FSDP averages gradients over ranks; the loss is a mean over the tokens of all of them.
        scale = self.policy.world_size / int(batch.mask.sum())
        first = self.policy.rank * self._num_groups
        for index in range(first, first + self._num_groups):
            logprobs = self._logprobs(batch.prompts[index], batch.tokens[index])
            terms = policy_terms(
                logprobs,
                batch.logprobs[index],
                advantages=batch.advantages[index],
                mask=batch.mask[index],
                clip=(self.settings.clip_low, self.settings.clip_high),
            )
            torch.autograd.backward(terms.loss * scale)
            sums += torch.stack(terms).detach().double()
        return sums

    def _logprobs(self, prompt: Prompt, tokens: torch.Tensor) -> torch.Tensor:
        """Log-probabilities float32 [G, T] of ``tokens`` [G, T] under the training policy."""
        prefix = torch.tensor(prompt.ids, dtype=torch.int64).expand(tokens.shape[0], -1)
        sequence = torch.cat([prefix, tokens], dim=1)
        logits = self.policy.model(
            input_ids=sequence, use_cache=False, logits_to_keep=tokens.shape[1] + 1
        ).logits
        return token_logprobs(logits[:, :-1], tokens, self.settings.temperature)

    def _apply_gradients(self) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self.policy.model.parameters(), self.settings.max_grad_norm)
        self.policy.optimizer.step()
        self.policy.optimizer.zero_grad(set_to_none=True)
        return float(_full(norm))


def _full(value: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def _metrics(batch: Batch, sums: torch.Tensor, grad_norm: float, *, step: int, version: int) -> StepMetrics:
    num_tokens = int(batch.mask.sum())
    loss, gen_kl, clipped = (float(value) / num_tokens for value in sums)
    return StepMetrics(
        step=step,
        version=version,
        reward_mean=float(batch.rewards.mean()),
        reward_std=float(batch.rewards.std(dim=1).mean()),
        loss=loss,
        gen_kl_error=gen_kl,
        clip_fraction=clipped,
        grad_norm=grad_norm,
        num_tokens=num_tokens,
        token_digest=token_digest(batch.tokens),
    )
