"""What a serving runtime must offer (DESIGN R9, R19). Kept beside its consumer, the receiver."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class NativeLoader(Protocol):
    """One rank's own weight loader and the storage that it fills. Never called concurrently."""

    def load(self, weights: Iterable[tuple[str, "torch.Tensor"]]) -> None:
        """Run the runtime's own ``load_weights`` over a stream of canonical tensors.

        Must consume the stream one tensor at a time and copy each before asking for the next. Each item is
        a tensor object of its own: loaders leave attributes on what they are given.
        May raise anything for a name it does not know.
        """
        ...

    def resident(self) -> dict[str, "torch.Tensor"]:
        """Every parameter and buffer, non-persistent buffers included, by runtime name.

        Tensors are live: the same storages at every call unless the runtime rebuilt them.
        """
        ...

    def skips(self, name: str) -> bool:
        """Whether the loader places canonical ``name`` nowhere on purpose (a tied output head, say)."""
        ...

    def refusals(self) -> dict[str, str]:
        """What the adapter knows to be beyond deltas: resident or canonical name -> reason and remedy.

        Quantised methods, packed weights without a way back, a reload in progress. Empty if nothing is.
        """
        ...

    def synchronize(self) -> None:
        """Wait for the device and run the runtime's own post-load step, if it has one."""
        ...


class RequestGate(Protocol):
    """Shields requests from weights in transition (paper section 7)."""

    def close(self) -> None:
        """Admit no further request and return when none is in flight. Idempotent."""
        ...

    def open(self, version: int, *, changed: bool) -> None:
        """Admit requests again; answers carry ``version``. Idempotent.

        ``changed`` false (nothing was written since the gate last served) keeps KV caches; else
        every cache that depends on the weights is cleared before the first request (R19, P15).
        """
        ...
