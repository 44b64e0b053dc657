"""One optimizer step of Megatron-core on one step's experience.

Legend: G responses of a group, L prompt tokens, T response tokens, S = L + T, V vocabulary entries. A
micro-batch is one prompt group.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from dcr.source.ports import ShardSource
from dcr_adapters.megatron import MegatronShards
from dcr_recipes.grpo.batch import Batch
from dcr_recipes.grpo.learner import Learned, group_terms
from dcr_recipes.grpo.loss import token_logprobs
from dcr_recipes.grpo.settings import GrpoSettings
from dcr_recipes.megatron import state as training_state


@dataclass(frozen=True, slots=True)
class Parts:
    """What Megatron trains: the Bridge, this rank's chunks in data parallelism, and their optimizer.

    ``num_rows`` are those of each canonical tensor; Megatron may have more of a vocabulary.
    """

    bridge: Any
    chunks: Sequence[torch.nn.Module]
    optimizer: Any
    num_rows: Mapping[str, int]


class MegatronLearner:
    """Implements ``dcr_recipes.grpo.learner.Learner``. Each data-parallel rank has ``num_groups`` groups."""

    def __init__(self, parts: Parts, settings: GrpoSettings, num_groups: int) -> None:
        self._parts = parts
        self._settings = settings
        self._num_groups = num_groups
        self._vocabulary = int(parts.bridge.hf_pretrained.config.get_text_config().vocab_size)

    def learn(self, batch: Batch) -> Learned:
        """See ``Learner``: Megatron's schedule, gradient reduction and optimizer."""
        from megatron.core.distributed import finalize_model_grads
        from megatron.core.pipeline_parallel import get_forward_backward_func

        chunks, optimizer = list(self._parts.chunks), self._parts.optimizer
        for chunk in chunks:
            chunk.zero_grad_buffer()  # type: ignore[operator]
        optimizer.zero_grad()
        sums = torch.zeros(3, dtype=torch.float64)
        get_forward_backward_func()(
            forward_step_func=partial(self._forward, batch, sums),
            data_iterator=iter(self._mine()),
            model=chunks,
            num_microbatches=self._num_groups,
            seq_length=batch.sequences(0).shape[1],
            micro_batch_size=self._settings.group_size,
            forward_only=False,
        )
        finalize_model_grads(chunks)
        _, grad_norm, _ = optimizer.step()
        dist.all_reduce(sums)
        return Learned(sums, float(grad_norm))

    def capture(self) -> dict[str, torch.Tensor]:
        """See ``Learner``."""
        return training_state.capture(self._parts.chunks, self._parts.optimizer)

    def install(self, state: Mapping[str, torch.Tensor]) -> None:
        """See ``Learner``."""
        training_state.install(self._parts.chunks, self._parts.optimizer, state)

    def gather(self) -> dict[str, torch.Tensor]:
        """See ``Learner``: the Bridge's own export, without the rows that pad its vocabulary."""
        exported = self._parts.bridge.export_hf_weights(
            list(self._parts.chunks), cpu=True, show_progress=False
        )
        return {name: tensor[: self._parts.num_rows[name]] for name, tensor in exported}

    def shards(self) -> ShardSource:
        """See ``Learner``."""
        return MegatronShards(self._parts.bridge, self._parts.chunks)

    def _mine(self) -> range:
        """This rank's groups."""
        from megatron.core import parallel_state

        first = parallel_state.get_data_parallel_rank() * self._num_groups
        return range(first, first + self._num_groups)

    def _forward(
        self, batch: Batch, sums: torch.Tensor, indices: Iterator[int], model: torch.nn.Module
    ) -> tuple[torch.Tensor, Any]:
        """One group through this stage, and what the last stage makes of its logits."""
        index = next(indices)
        sequences = batch.sequences(index)
        positions = torch.arange(sequences.shape[1]).expand_as(sequences)
        hidden = torch.ones(sequences.shape[1], sequences.shape[1], dtype=torch.bool).triu(1)[None, None]
        out = model(sequences, positions, hidden)
        return out, partial(self._loss, batch, index, sums)

    def _loss(
        self, batch: Batch, index: int, sums: torch.Tensor, logits: torch.Tensor
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Loss of ``logits`` [G, S, V / tensor-parallel ranks]; adds to ``sums`` once for each group."""
        from megatron.core import parallel_state
        from megatron.core.tensor_parallel import gather_from_tensor_model_parallel_region

        whole = gather_from_tensor_model_parallel_region(logits)[..., : self._vocabulary]
        tokens = batch.tokens[index]
        picked = whole[:, -tokens.shape[1] - 1 : -1]
        logprobs = token_logprobs(picked, tokens, self._settings.temperature)
        terms = group_terms(logprobs, batch, index, self._settings)
        if parallel_state.get_tensor_model_parallel_rank() == 0:
            sums += torch.stack(terms).detach().double()
        # Megatron takes means over micro-batches and replicas; the loss is one over all tokens.
        replicas = parallel_state.get_data_parallel_world_size()
        scale = self._num_groups * replicas / int(batch.mask.sum())
        return terms.loss * scale, {}
