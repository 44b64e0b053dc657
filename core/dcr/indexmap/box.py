"""A strided box: one rectangular piece of a map between two flat index spaces (DESIGN section 4)."""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
from numpy.typing import NDArray

from dcr.errors import ConfigError

Indices = NDArray[np.int64]
Dim = tuple[int, int, int]
"""Size, src stride and dst stride of one dimension."""


@dataclass(frozen=True, slots=True)
class Box:
    """Pairs ``src_offset + sum(i_d * src_strides[d])`` with ``dst_offset + sum(i_d * dst_strides[d])``.

    ``i_d`` runs over ``range(shape[d])``; all numbers count elements. Shape ``()`` is one element.
    On either side the strides must nest: sorted by stride, each is larger than the span of all
    smaller ones, as in any block, transpose or interleave of a dense tensor. So a box pairs
    elements one to one and an index has a single decomposition.

    Raises:
        ConfigError: lengths differ, a number is negative, or strides do not nest.
    """

    shape: tuple[int, ...]
    src_offset: int
    src_strides: tuple[int, ...]
    dst_offset: int
    dst_strides: tuple[int, ...]

    def __post_init__(self) -> None:
        if not len(self.shape) == len(self.src_strides) == len(self.dst_strides):
            raise ConfigError(f"box {self}: shape, src_strides and dst_strides differ in length")
        if (self.shape and min(self.shape) < 0) or self.src_offset < 0 or self.dst_offset < 0:
            raise ConfigError(f"box {self}: shape and offsets must not be negative")
        if 0 in self.shape:
            return
        for side, strides in (("src", self.src_strides), ("dst", self.dst_strides)):
            if not nests(self.shape, strides):
                raise ConfigError(
                    f"box {self}: {side}_strides overlap themselves; split it into smaller boxes"
                )

    @property
    def size(self) -> int:
        """Number of element pairs."""
        return prod(self.shape)

    @property
    def src_last(self) -> int:
        """Largest source index of a box that is not empty."""
        return self.src_offset + span(self.shape, self.src_strides)

    @property
    def dst_last(self) -> int:
        """Largest destination index of a box that is not empty."""
        return self.dst_offset + span(self.shape, self.dst_strides)

    def flipped(self) -> "Box":
        """The same pairs with source and destination exchanged."""
        return Box(self.shape, self.dst_offset, self.dst_strides, self.src_offset, self.src_strides)

    def normal(self) -> "Box":
        """The same pairs with dimensions of one element dropped, sorted by src stride, and merged."""
        dims = sorted(
            (dim for dim in zip(self.shape, self.src_strides, self.dst_strides, strict=True) if dim[0] != 1),
            key=lambda dim: -dim[1],
        )
        merged: list[Dim] = []
        for size, src, dst in dims:
            if merged and merged[-1][1:] == (size * src, size * dst):
                merged[-1] = (merged[-1][0] * size, src, dst)
            else:
                merged.append((size, src, dst))
        shape, src_strides, dst_strides = (tuple(dim[i] for dim in merged) for i in range(3))
        return Box(shape, self.src_offset, src_strides, self.dst_offset, dst_strides)


def span(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Distance from the first to the last index of a box that is not empty."""
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


@lru_cache(maxsize=4096)  # layers are alike
def nests(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether every stride exceeds the span of all smaller ones (dimensions of one element are free)."""
    reach = 0
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


def members(box: Box, start: int, stop: int) -> Indices:
    """Source indices [stop - start] of the box's pairs ``start .. stop - 1``, row-major over its shape."""
    left = np.arange(start, stop, dtype=np.int64)
    out = np.full(left.shape, box.src_offset, dtype=np.int64)
    for size, stride in zip(reversed(box.shape), reversed(box.src_strides), strict=True):
        coordinate = left % size
        left //= size
        out += coordinate * stride
    return out


def cut(box: Box, start: int, stop: int) -> list[Box]:
    """Parts of a box in normal form whose sources lie in ``start .. stop - 1``; two a dimension at most."""
    if box.size == 0 or box.src_last < start or box.src_offset >= stop:
        return []
    if box.src_offset >= start and box.src_last < stop:
        return [box]
    size, src, dst = box.shape[0], box.src_strides[0], box.dst_strides[0]

    def rows(first: int, last: int) -> Box:
        offsets = box.src_offset + first * src, box.dst_offset + first * dst
        shape = (last - first, *box.shape[1:])
        return Box(shape, offsets[0], box.src_strides, offsets[1], box.dst_strides)

    reach = box.src_last - box.src_offset - (size - 1) * src  # of one row
    first = max(0, -(-(start - box.src_offset) // src))  # rows that begin inside
    last = min(size, max(first, (stop - 1 - reach - box.src_offset) // src + 1))  # and end inside
    edges = {max(0, first - 1), last} - set(range(first, last))
    parts = [rows(first, last)] if last > first else []
    for edge in sorted(row for row in edges if row < size):
        inner = rows(edge, edge + 1)
        alone = Box(
            box.shape[1:], inner.src_offset, box.src_strides[1:], inner.dst_offset, box.dst_strides[1:]
        )
        parts.extend(cut(alone, start, stop))
    return parts


def surely_disjoint(a: Box, b: Box) -> bool:
    """Cheap proof that two boxes that are not empty share no source index; False means unknown.

    Ranges that do not meet, or combs of a common period (gate/up, Q/K/V interleave) whose teeth
    stay within one period and do not meet.
    """
    if a.src_last < b.src_offset or b.src_last < a.src_offset:
        return True
    periods = {stride for stride in (*a.src_strides, *b.src_strides) if stride > 1}
    return any(_teeth_apart(a, b, period) for period in periods)


def _teeth_apart(a: Box, b: Box, period: int) -> bool:
    teeth = []
    for box in (a, b):
        inner = sum(
            (size - 1) * stride
            for size, stride in zip(box.shape, box.src_strides, strict=True)
            if stride % period
        )
        first = box.src_offset % period
        if first + inner >= period:
            return False
        teeth.append((first, first + inner))
    (a_first, a_last), (b_first, b_last) = teeth
    return a_last < b_first or b_last < a_first
