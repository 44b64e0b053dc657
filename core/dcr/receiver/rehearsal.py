"""The loader run again without effect: what it would store, beside what is stored (DESIGN B6, P8).

The one proof for tensors that have no map: whole ones, composed ones, casts that lose bits.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from typing_extensions import override

from dcr.receiver.ports import NativeLoader
from dcr.receiver.schema import Effect, effect_of
from dcr.receiver.storages import Storages


def unlike_reloaded(
    loader: NativeLoader, storages: Storages, weights: Iterable[tuple[str, torch.Tensor]]
) -> list[str]:
    """Resident names of storages that loading ``weights`` again would change; nothing is changed.

    Costs one pass of the loader and a copy of each storage that it writes.
    """
    redirect = _Redirect(storages)
    with torch.no_grad(), redirect:
        loader.load(weights)
    return [
        storages[number].name
        for number, copy in redirect.copies.items()
        if not torch.equal(copy, storages.flat(number, torch.uint8))
    ]


class _Redirect(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch ships it untyped
    """Gives every operation copies of resident storages in their place; views stay views of the resident."""

    def __init__(self, storages: Storages) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies: dict[int, torch.Tensor] = {}
        self._storages = storages

    @classmethod
    @override
    def _should_skip_dynamo(cls) -> bool:
        """Loaders are not compiled: spare each operation torch's wrapper, and the process its import."""
        return False

    @override
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Entry point of torch; see the class."""
        kwargs = kwargs or {}
        effect = effect_of(func)
        if effect is Effect.VIEW:
            return func(*args, **kwargs)
        stand_ins: dict[int, torch.Tensor] = {}
        sent = self._sent(args, stand_ins, writes=effect is Effect.WRITE)
        sent_kwargs = {
            name: self._sent(value, stand_ins, writes=effect is Effect.WRITE)
            for name, value in kwargs.items()
        }
        result = func(*sent, **sent_kwargs)
        return stand_ins.get(id(result), result)

    def _sent(self, value: Any, stand_ins: dict[int, torch.Tensor], *, writes: bool) -> Any:
        """``value`` with stand-ins for resident tensors; ``stand_ins`` maps each back."""
        if isinstance(value, list | tuple):
            return type(value)(self._sent(part, stand_ins, writes=writes) for part in value)
        if not isinstance(value, torch.Tensor):
            return value
        number = self._storages.find(value)
        if number is None or (number not in self.copies and not writes):
            return value
        if number not in self.copies:
            self.copies[number] = self._storages.flat(number, torch.uint8).clone()
        start = value.data_ptr() - self._storages[number].address
        copy = self.copies[number][start % value.element_size() :]
        whole = copy[: copy.numel() // value.element_size() * value.element_size()].view(value.dtype)
        stand_in = whole.as_strided(value.shape, value.stride(), start // value.element_size())
        stand_ins[id(stand_in)] = value
        return stand_in
