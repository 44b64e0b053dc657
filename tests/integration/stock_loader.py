"""The simplest native loader: every parameter by its own name."""

from collections.abc import Iterable

import torch


class StockLoader:
    """The identity."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for name, tensor in weights:
            self._model.get_parameter(name).data.copy_(tensor)

    def resident(self) -> dict[str, torch.Tensor]:
        return {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}

    def refusals(self) -> dict[str, str]:
        """Nothing beyond what the learning pass sees for itself."""
        return {}

    def skips(self, name: str) -> bool:
        return False

    def synchronize(self) -> None:
        return
