"""One GRPO step: rollouts, advantages, and what the learner makes of them. Same seeds, same bits.

Every rank calls every method, in the same order. Legend: P prompt groups, G responses of a group,
L prompt tokens, T response tokens.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from dcr import observe
from dcr_recipes.grpo.batch import Batch
from dcr_recipes.grpo.checkpoint import Checkpoint
from dcr_recipes.grpo.learner import Learned, Learner
from dcr_recipes.grpo.loss import group_advantages, response_mask
from dcr_recipes.grpo.metrics import StepMetrics, token_digest
from dcr_recipes.grpo.rollout import Responses, Rollouts
from dcr_recipes.grpo.sampler import Prompt
from dcr_recipes.grpo.seeds import response_seed
from dcr_recipes.grpo.settings import GrpoSettings
from dcr_recipes.grpo.tasks import Task


class GrpoTrainer:
    """Trains one policy step by step. Has no clock and no connection: ``rollouts``, on rank 0 only, has.

    ``history`` has the metrics of every step since the run began, restored ones included.
    """

    def __init__(
        self, learner: Learner, settings: GrpoSettings, *, task: Task, rollouts: Rollouts | None
    ) -> None:
        self.learner = learner
        self.settings = settings
        self.history: list[StepMetrics] = []
        self._task = task
        self._rollouts = rollouts

    @property
    def step(self) -> int:
        """Steps done so far; the weights are those after this step."""
        return self.history[-1].step if self.history else 0

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to ``checkpoint``: weights, optimizer, random state, history; sampling follows the step."""
        self.learner.install(checkpoint.state)
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
            learned = self.learner.learn(batch)
        metrics = _metrics(batch, learned, step=step, version=version)
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
        dist.broadcast(tokens, src=0)
        dist.broadcast(logprobs, src=0)
        return Responses(tokens, logprobs)


def _metrics(batch: Batch, learned: Learned, *, step: int, version: int) -> StepMetrics:
    num_tokens = int(batch.mask.sum())
    loss, gen_kl, clipped = (float(value) / num_tokens for value in learned.sums)
    return StepMetrics(
        step=step,
        version=version,
        reward_mean=float(batch.rewards.mean()),
        reward_std=float(batch.rewards.std(dim=1).mean()),
        loss=loss,
        gen_kl_error=gen_kl,
        clip_fraction=clipped,
        grad_norm=learned.grad_norm,
        num_tokens=num_tokens,
        token_digest=token_digest(batch.tokens),
    )
