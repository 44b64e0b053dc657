"""Native loader of one SGLang rank (DESIGN R9, R20): the model's own ``load_weights`` and its parameters.

Nothing here knows a model. SGLang's loaders return nothing and pass over names that they do not know, so
what they place is only ever told by the copies that they make.
"""

from collections.abc import Iterable, Iterator

import torch
from torch import nn

from dcr.receiver.modules import resident_of
from dcr_adapters.sglang.refusals import Engine, refusals, this_engine


class SglangLoader:
    """Implements ``dcr.receiver.ports.NativeLoader`` over the model of one worker.

    ``engine``: how the engine around it is set up; by default as SGLang's settings of this process say.
    """

    def __init__(self, model: nn.Module, engine: Engine | None = None) -> None:
        self.model = model
        self._engine = engine
        first: dict[int, str] = {}
        named = model.named_parameters(remove_duplicate=False)
        self._tied = {name for name, value in named if first.setdefault(id(value), name) != name}

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Stream canonical tensors through the model's loader, which ignores unknown names."""
        with torch.no_grad():
            self.model.load_weights(_views(weights))  # type: ignore[operator]  # SGLang's protocol

    def resident(self) -> dict[str, torch.Tensor]:
        """Every parameter and buffer of this rank, by SGLang's names."""
        return resident_of(self.model)

    def skips(self, name: str) -> bool:
        """A tied parameter's further name."""
        return name in self._tied

    def refusals(self) -> dict[str, str]:
        """Quantized, packed, shared, derived or moving weights; see ``dcr_adapters.sglang.refusals``."""
        return refusals(self.model, self._engine or this_engine())

    def synchronize(self) -> None:
        """Wait for the device, and forget embeddings of old weights, which SGLang's flush leaves as they are.

        SGLang derives nothing from weights that are not refused.
        """
        if any(tensor.device.type != "cpu" for tensor in self.resident().values()):
            torch.accelerator.synchronize()
        from sglang.srt.managers import mm_schedule

        if mm_schedule.embedding_cache is not None:
            mm_schedule.embedding_cache.clear()


def _views(weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor object of its own for each item: loaders leave attributes on what they are given."""
    for name, weight in weights:
        yield name, weight.view(weight.shape)
