"""The policy in training under FSDP2. Legend: P prompt groups, G responses of a group, T response tokens."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from dcr.source.ports import ShardSource
from dcr_adapters.fsdp import FsdpShards, gather_dense
from dcr_recipes.grpo import shard_state
from dcr_recipes.grpo.batch import Batch
from dcr_recipes.grpo.learner import Learned, group_terms
from dcr_recipes.grpo.loss import token_logprobs
from dcr_recipes.grpo.policy import Policy, shard_policy
from dcr_recipes.grpo.settings import GrpoSettings


class FsdpLearner:
    """Implements ``Learner`` for a policy that ``shard_policy`` made."""

    def __init__(self, policy: Policy, settings: GrpoSettings) -> None:
        self._policy = policy
        self._settings = settings
        self._num_groups = settings.groups_per_rank(policy.world_size)

    def learn(self, batch: Batch) -> Learned:
        """See ``Learner``: clipped loss, AdamW."""
        sums = self._accumulate_gradients(batch)
        grad_norm = self._apply_gradients()
        dist.all_reduce(sums, group=self._policy.mesh.get_group())
        return Learned(sums, grad_norm)

    def capture(self) -> dict[str, torch.Tensor]:
        """See ``Learner``."""
        return shard_state.capture(self._policy)

    def install(self, state: Mapping[str, torch.Tensor]) -> None:
        """See ``Learner``."""
        shard_state.install(self._policy, state)

    def gather(self) -> dict[str, torch.Tensor]:
        """See ``Learner``: BF16. A collective."""
        return gather_dense(self._policy.model)

    def shards(self) -> ShardSource:
        """See ``Learner``."""
        return FsdpShards(self._policy.model)

    def _accumulate_gradients(self, batch: Batch) -> torch.Tensor:
        """Backward over this rank's groups, one at a time; returns its sums [loss, gen_kl, clipped]."""
        self._policy.optimizer.zero_grad(set_to_none=True)
        sums = torch.zeros(3, dtype=torch.float64)
        # FSDP averages gradients over ranks; the loss is a mean over the tokens of all of them.
        scale = self._policy.world_size / int(batch.mask.sum())
        first = self._policy.rank * self._num_groups
        for index in range(first, first + self._num_groups):
            terms = group_terms(self._logprobs(batch, index), batch, index, self._settings)
            torch.autograd.backward(terms.loss * scale)
            sums += torch.stack(terms).detach().double()
        return sums

    def _logprobs(self, batch: Batch, index: int) -> torch.Tensor:
        """Log-probabilities float32 [G, T] of a group's tokens under the training policy."""
        tokens = batch.tokens[index]
        logits = self._policy.model(
            input_ids=batch.sequences(index), use_cache=False, logits_to_keep=tokens.shape[1] + 1
        ).logits
        return token_logprobs(logits[:, :-1], tokens, self._settings.temperature)

    def _apply_gradients(self) -> float:
        policy = self._policy
        norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), self._settings.max_grad_norm)
        policy.optimizer.step()
        policy.optimizer.zero_grad(set_to_none=True)
        return float(_full(norm))


def fsdp_learner(model: torch.nn.Module, settings: GrpoSettings) -> FsdpLearner:
    """Shard ``model``, FP32 and equal on all ranks, in place over the default process group.

    Raises:
        ConfigError: the batch cannot be shared evenly among the ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return FsdpLearner(shard_policy(model, mesh, settings), settings)


def _full(value: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value
