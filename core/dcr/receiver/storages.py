"""The runtime's storages: who owns memory, a number for each, and whether they are still what was learned.

A storage is found by its identity, or by address where memory is shared another way (numpy, a custom
kernel's alias). Only storages with bytes on a real device are kept.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeAlias

import torch
from torch._C import DisableTorchFunctionSubclass

from dcr.receiver.trace import Extent, extent_of

_SMALL = 1 << 12  # below, one call of a hash costs less than the operations of torch
_BLOCK_WORDS = 1 << 17
_MASK = (1 << 64) - 1


_Place: TypeAlias = tuple[int, torch.Size, tuple[int, ...], torch.dtype]


def _place(tensor: torch.Tensor) -> _Place:
    """Where a resident tensor lies: address, shape, strides in elements, dtype."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class StorageInfo(NamedTuple):
    """One storage: the first resident name that views it, its address and size."""

    name: str
    address: int
    num_bytes: int
    device: torch.device


def _plainly() -> AbstractContextManager[None]:
    """Runtimes' parameters are subclasses, of which each small question costs a detour through Python."""
    plainly: AbstractContextManager[None] = DisableTorchFunctionSubclass()
    return plainly


def _end(info: StorageInfo) -> int:
    return info.address + info.num_bytes


class Storages:
    """Snapshot of a loader's resident tensors; storages are numbered from 0 in their order."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        with _plainly():
            self._places = {name: _place(tensor) for name, tensor in tensors.items()}
            self._data = {name: tensor.detach() for name, tensor in tensors.items()}
        self.parameters = [n for n, tensor in tensors.items() if isinstance(tensor, torch.nn.Parameter)]
        self._infos: list[StorageInfo] = []
        self._bytes: list[torch.Tensor] = []
        self._by_identity: dict[int, int] = {}
        self._number_of: dict[str, int] = {}
        self._guards: dict[tuple[int, int, int], int] = {}
        by_address: dict[int, int] = {}
        for name, tensor in self._data.items():
            storage = tensor.untyped_storage()
            if not storage.nbytes() or not storage.data_ptr():
                continue
            number = by_address.setdefault(storage.data_ptr(), len(self._infos))
            if number == len(self._infos):
                self._add(name, tensor)
            self._by_identity[storage._cdata] = number
            self._number_of[name] = number
        self._order = sorted(range(len(self._infos)), key=lambda i: self._infos[i].address)
        self._starts = [self._infos[i].address for i in self._order]

    def __len__(self) -> int:
        return len(self._infos)

    def __getitem__(self, number: int) -> StorageInfo:
        return self._infos[number]

    @property
    def identities(self) -> dict[int, int]:
        """Storage identity (``untyped_storage()._cdata``) -> number, of the tensors in the snapshot."""
        return self._by_identity

    def number_of(self, name: str) -> int | None:
        """Storage of resident tensor ``name``; None if it has no bytes."""
        return self._number_of.get(name)

    def extent_of(self, name: str) -> Extent | None:
        """Bytes that resident tensor ``name`` spans; None if it has none."""
        number = self._number_of.get(name)
        address, shape, strides, dtype = self._places[name]
        if number is None or not shape.numel():
            return None
        width = dtype.itemsize
        return extent_of(number, (address - self._infos[number].address) // width, shape, strides, width)

    def find(self, tensor: torch.Tensor) -> int | None:
        """Number of the storage that ``tensor`` views; None for any other memory."""
        storage = tensor.untyped_storage()
        number = self._by_identity.get(storage._cdata)
        if number is not None or tensor.device.type == "meta":
            return number
        address = storage.data_ptr()
        at = bisect_right(self._starts, address) - 1
        if at < 0:
            return None
        info = self._infos[self._order[at]]
        return self._order[at] if address < info.address + info.num_bytes else None

    def flat(self, number: int, dtype: torch.dtype) -> torch.Tensor:
        """The whole storage as a flat live view [num_bytes // itemsize] of ``dtype``."""
        raw = self._bytes[number]
        whole = raw.numel() // dtype.itemsize * dtype.itemsize
        return raw[:whole].view(dtype)

    def overlapping(self) -> dict[str, str]:
        """Resident name -> another one in whose storage its own storage begins (slices of a numpy array)."""
        found: dict[str, str] = {}
        last: StorageInfo | None = None
        for info in (self._infos[number] for number in self._order):
            if last is not None and info.device == last.device and info.address < _end(last):
                found[info.name] = last.name
            if last is None or info.device != last.device or _end(info) > _end(last):
                last = info
        return found

    def guard(self, extents: Iterable[tuple[int, int, int]]) -> None:
        """From now on ``moved`` also tells when these bytes (storage, start, stop) change."""
        self._guards = {extent: self._fingerprint_of(extent) for extent in sorted(extents)}

    @property
    def guards(self) -> tuple[str, ...]:
        """Names of the storages of which the map depends on some contents."""
        return tuple(dict.fromkeys(self._infos[number].name for number, _, _ in self._guards))

    def moved(self, now: dict[str, torch.Tensor]) -> str | None:
        """Name of a tensor that was rebound, reshaped, added or removed, or of a guard that changed."""
        if now.keys() != self._places.keys():
            return min(now.keys() ^ self._places.keys())
        with _plainly():
            for name, tensor in now.items():
                if _place(tensor) != self._places[name]:
                    return name
        for extent, before in self._guards.items():
            if self._fingerprint_of(extent) != before:
                return self._infos[extent[0]].name
        return None

    def gone(self) -> str | None:
        """Name of a storage of which the memory is not where it was: freed, or grown.

        What is only rebound is not seen, but its old memory is kept alive here. Far cheaper than ``moved``.
        """
        for info, raw in zip(self._infos, self._bytes, strict=True):
            if raw.untyped_storage().data_ptr() != info.address:
                return info.name
        return None

    def rebind(self, now: dict[str, torch.Tensor]) -> bool:
        """Put the snapshot's memory back behind tensors that were rebound; whether that succeeded."""
        for name, data in self._data.items():
            if name in now and _place(now[name]) != self._places[name]:
                try:
                    now[name].data = data
                except RuntimeError:  # another device: the tensor itself was replaced
                    return False
        return self.moved(now) is None

    def fingerprint(self, number: int) -> int:
        """Sum of position-weighted words of the storage, modulo 2^64; see ``fingerprint``."""
        return fingerprint(self._bytes[number])

    def _fingerprint_of(self, extent: tuple[int, int, int]) -> int:
        number, start, stop = extent
        return fingerprint(self._bytes[number][start:stop])

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        self._infos.append(StorageInfo(name, storage.data_ptr(), storage.nbytes(), tensor.device))
        self._bytes.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))


def fingerprint(raw: torch.Tensor) -> int:
    """A number of flat uint8 memory [B] that any change of one 8-byte word changes.

    Weights are odd, so no change of a single word is lost, and differ from place to place, so moved words
    show; they look random, for equal changes of many words cancel where weights add up to powers of two. At
    the speed of memory and on the tensor's own device (12 GB/s on one core, where crc32 has 4
    and blake2b 1); it is against accidents, so two changes that cancel modulo 2^64 may be missed.
    """
    if raw.numel() <= _SMALL and raw.device.type == "cpu":
        return int.from_bytes(hashlib.blake2b(raw.numpy().data, digest_size=8).digest(), "little")
    num_words = raw.numel() // 8
    whole = raw[: num_words * 8]
    words = (whole if raw.storage_offset() % 8 == 0 else whole.clone()).view(torch.int64)
    weights = _weights(min(_BLOCK_WORDS, max(num_words, 1)), raw.device)
    total = 0
    for block, start in enumerate(range(0, num_words, _BLOCK_WORDS)):
        part = words[start : start + _BLOCK_WORDS]
        total += int((part * weights[: part.numel()]).sum().item()) * (2 * block + 1)
    tail = bytes(raw[num_words * 8 :].tolist())
    return (total * 0x9E3779B97F4A7C15 + int.from_bytes(tail, "little")) & _MASK


def _weights(num: int, device: torch.device) -> torch.Tensor:
    """Odd int64 [num]."""
    mixed = torch.arange(1, num + 1, dtype=torch.int64, device=device) * -0x61C8864680B583EB
    mixed ^= mixed >> 29
    mixed *= -0x4B47D0C5A1A36A2B
    return mixed | 1
