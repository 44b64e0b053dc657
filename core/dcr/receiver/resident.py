"""The runtime's storage: who owns an address, and whether it is still the storage that was learned."""

import hashlib
from bisect import bisect_right
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a resident tensor lies: address, shape, strides in elements, dtype."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


def _place(tensor: torch.Tensor) -> _Place:
    return _Place(tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


class Residents:
    """Snapshot of a loader's resident tensors, by name and by the memory range of their storages.

    Storages are found by address, so every view of them is, however it was made.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = dict(tensors)
        self._places = {name: _place(tensor) for name, tensor in tensors.items()}
        self._data = {name: tensor.detach() for name, tensor in tensors.items()}
        ranges: dict[int, tuple[int, str]] = {}
        for name, tensor in tensors.items():
            storage = tensor.untyped_storage()
            if storage.nbytes():
                ranges.setdefault(storage.data_ptr(), (storage.data_ptr() + storage.nbytes(), name))
        self._starts = sorted(ranges)
        self._ends = [ranges[start][0] for start in self._starts]
        self._owners = [ranges[start][1] for start in self._starts]

    def owner(self, tensor: torch.Tensor) -> str | None:
        """Name of a resident tensor whose storage ``tensor`` views; None for any other memory."""
        address = tensor.untyped_storage().data_ptr()
        at = bisect_right(self._starts, address) - 1
        return self._owners[at] if at >= 0 and address < self._ends[at] else None

    def moved(self, now: dict[str, torch.Tensor]) -> str | None:
        """Name of a tensor that was rebound, reshaped, added or removed since the snapshot."""
        for name in sorted(self._places.keys() | now.keys()):
            if name not in now or name not in self._places or _place(now[name]) != self._places[name]:
                return name
        return None

    def rebind(self, now: dict[str, torch.Tensor]) -> bool:
        """Put the snapshot's storages back behind tensors that were rebound; whether that succeeded."""
        for name, data in self._data.items():
            if name in now and _place(now[name]) != self._places[name]:
                now[name].data = data
        return self.moved(now) is None

    def digest(self) -> str:
        """BLAKE2b-128 over every resident storage byte, in address order of the snapshot."""
        hasher = hashlib.blake2b(digest_size=16)
        seen: set[int] = set()
        for name in sorted(self._data):
            storage = self._data[name].untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                whole = torch.empty(0, dtype=torch.uint8, device=self._data[name].device).set_(storage)
                hasher.update(whole.cpu().numpy().data)
        return hasher.hexdigest()
