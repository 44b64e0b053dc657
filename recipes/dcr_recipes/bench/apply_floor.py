"""The least that any apply does: write the changed elements at destinations that are known already.

Destinations are what a dense load of the second version leaves different, so no map takes part in
finding them. Shapes: L bytes of a storage, E destinations in it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dcr.receiver.ports import NativeLoader

Storages: TypeAlias = dict[int, NDArray[Any]]
"""Address -> live bits of one storage, unsigned of the width of the tensor that views it."""

_UNSIGNED = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def storages_of(loader: NativeLoader) -> Storages:
    """Every resident storage once."""
    found: Storages = {}
    for tensor in loader.resident().values():
        storage = tensor.untyped_storage()
        if not storage.nbytes() or storage.data_ptr() in found:
            continue
        width = tensor.element_size()
        flat = torch.empty(0, dtype=_SIGNED[width]).set_(storage)
        found[storage.data_ptr()] = flat.numpy().view(_UNSIGNED[width])
    return found


def snapshot(storages: Storages) -> Storages:
    """Copies of what they hold."""
    return {address: bits.copy() for address, bits in storages.items()}


def hold(storages: Storages, wanted: Storages) -> bool:
    """Whether every bit is that of the snapshot."""
    return all(np.array_equal(bits, wanted[address]) for address, bits in storages.items())


class Floor:
    """Writes of one version over another; ``run`` may be called in any state."""

    def __init__(self, storages: Storages, before: Storages) -> None:
        """``before`` are copies of the storages as the first version left them; they hold the second now."""
        self._writes: list[tuple[NDArray[Any], NDArray[np.int64], NDArray[Any]]] = []
        for address, bits in storages.items():
            where = np.flatnonzero(bits != before[address])
            if where.size:
                self._writes.append((bits, where, bits[where]))
        self._touch = _touch()

    @property
    def num_writes(self) -> int:
        """Elements that differ; those of several copies count each."""
        return sum(where.size for _, where, _ in self._writes)

    def run(self) -> None:
        """Write them all."""
        for bits, where, values in self._writes:
            self._touch(bits, where, values)


@cache
def _touch() -> Callable[[NDArray[Any], NDArray[np.int64], NDArray[Any]], None]:
    import numba

    compiled: Callable[[NDArray[Any], NDArray[np.int64], NDArray[Any]], None]
    try:
        compiled = numba.njit(nogil=True, cache=True)(_write)
    except RuntimeError:  # nowhere to keep compiled code
        compiled = numba.njit(nogil=True)(_write)
    return compiled


def _write(bits: NDArray[Any], where: NDArray[np.int64], values: NDArray[Any]) -> None:
    for at in range(where.size):
        bits[np.uint64(where[at])] = values[at]
