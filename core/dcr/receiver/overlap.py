"""Which destinations of a loader overlap, and whether their writes always agree (Table A.2, DESIGN R12).

Two writes to one byte agree if they carry the same lane of the same canonical element (tied names
share theirs) in the same dtype. Then overwrites are exact in any order, while XOR would cancel.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dcr.receiver.geometry import Copy, Fill

_CONSTANT = -1
_MAX_KINDS = 1 << 20


@dataclass(frozen=True, slots=True)
class Write:
    """One write of ``name`` (a canonical name), whose bits are those of canonical tensor ``root``."""

    name: str
    root: int
    action: Copy | Fill

    @property
    def extent(self) -> tuple[int, int]:
        """Byte addresses."""
        return self.action.extent


@dataclass(slots=True)
class Overlaps:
    """``shared``: names with a byte that is written more than once; ``conflicts``: name -> reason."""

    shared: set[str]
    conflicts: dict[str, str]


def find_overlaps(writes: list[Write]) -> Overlaps:
    """Compare every pair of writes that meet, byte by byte; costs memory only where extents meet."""
    found = Overlaps(set(), {})
    for group in _meeting(writes):
        if len(group) > 1 or _may_repeat(group[0].action):
            _compare(group, found)
    return found


def _meeting(writes: list[Write]) -> Iterator[list[Write]]:
    """Groups of writes whose extents are connected, each in the order of ``writes``."""
    order = sorted(range(len(writes)), key=lambda i: writes[i].extent)
    group: list[int] = []
    end = 0
    for i in order:
        start, stop = writes[i].extent
        if group and start >= end:
            yield [writes[j] for j in sorted(group)]
            group = []
        group.append(i)
        end = max(end, stop) if len(group) > 1 else stop
    if group:
        yield [writes[j] for j in sorted(group)]


def _may_repeat(action: Copy | Fill) -> bool:
    """Whether a destination view might name one element twice; true also where it is merely unclear."""
    shape, strides = _geometry(action)
    reach = 1
    for stride, n in sorted((s, n) for s, n in zip(strides, shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach = stride * n
    return False


def _geometry(action: Copy | Fill) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(action.target.shape), tuple(action.target.stride())


def _compare(group: list[Write], found: Overlaps) -> None:
    start = min(write.extent[0] for write in group)
    stop = max(write.extent[1] for write in group)
    holder = np.full(stop - start, -1, dtype=np.int32)
    contents = np.full(stop - start, _CONSTANT, dtype=np.int64)
    kinds: dict[tuple[object, ...], int] = {}
    for number, write in enumerate(group):
        at, identity = _bytes_of(write, kinds)
        at -= start
        earlier, before = holder[at], contents[at]
        copied_twice = (before != _CONSTANT) & (identity != _CONSTANT)
        for other in np.unique(earlier[copied_twice]):
            found.shared.update((write.name, group[other].name))
        for other in np.unique(earlier[(earlier >= 0) & (before != identity)]):
            _note_conflict(write, group[other], found)
        holder[at] = number
        contents[at] = identity
        if np.any(contents[at] != identity):
            _note_conflict(write, write, found)


def _note_conflict(write: Write, other: Write, found: Overlaps) -> None:
    reason = f"its bytes in {write.action.resident!r} are also written by {other.name} with other contents"
    found.conflicts.setdefault(write.name, reason)


def _bytes_of(
    write: Write, kinds: dict[tuple[object, ...], int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Byte addresses [B] of a write and, for each, a number that names its contents.

    A cast and a plain copy of one element differ, so tensor, destination dtype and way of writing
    are numbered in ``kinds``; the number of a byte is (canonical index, kind, lane).
    """
    action = write.action
    shape, strides = _geometry(action)
    width = action.target.element_size()
    lane = np.arange(width, dtype=np.int64)
    at = (action.target.data_ptr() + _offsets(shape, strides) * width)[:, None] + lane
    if isinstance(action, Fill):
        return at.ravel(), np.full(at.size, _CONSTANT, dtype=np.int64)
    kind = kinds.setdefault((write.root, action.dtype, action.scalar), len(kinds))
    source = action.source_offset + _offsets(shape, action.source_strides)
    return at.ravel(), ((source[:, None] * _MAX_KINDS + kind) * 8 + lane).ravel()


def _offsets(shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.int64]:
    """Element offsets of a strided view in row-major order, flat [E]."""
    total = np.zeros((1,) * max(len(shape), 1), dtype=np.int64)
    for dim, (n, stride) in enumerate(zip(shape, strides, strict=True)):
        steps = np.arange(n, dtype=np.int64) * stride
        total = total + steps.reshape(tuple(n if d == dim else 1 for d in range(len(shape))))
    return total.ravel()
