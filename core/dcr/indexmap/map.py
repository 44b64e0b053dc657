"""IndexMap: a partial function between two flat index spaces, as a few boxes (DESIGN section 4).

Shape legend: E indices given, F indices kept.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dcr.errors import ConfigError
from dcr.indexmap.box import Box, Indices, cut, members, surely_disjoint
from dcr.indexmap.runs import decode_runs, runs_of

_CHUNK = 1 << 20
_FEW_BOXES = 8  # a pass over all indices for each box is cheaper up to here


@dataclass(frozen=True, slots=True)
class IndexMap:
    """Maps source indices ``0 .. src_size - 1`` to destination indices ``0 .. dst_size - 1``.

    A trainer's map goes from a local shard to the canonical tensor, a receiver's from the
    canonical tensor to resident storage. Source indices in no box are cropped: they map to -1.
    Boxes are kept in normal form without empty ones, ordered by source offset. Fan-out (one
    source, several destinations) is one map per destination.

    Raises:
        ConfigError: a box leaves its space, or two boxes claim one source index.
    """

    boxes: tuple[Box, ...]
    src_size: int
    dst_size: int

    def __post_init__(self) -> None:
        normal = sorted((box.normal() for box in self.boxes if box.size), key=lambda box: box.src_offset)
        object.__setattr__(self, "boxes", tuple(normal))
        if self.src_size < 0 or self.dst_size < 0:
            raise ConfigError(f"index map: sizes {self.src_size} and {self.dst_size} must not be negative")
        for box in self.boxes:
            if box.src_last >= self.src_size or box.dst_last >= self.dst_size:
                raise ConfigError(f"{box} leaves its spaces of {self.src_size} and {self.dst_size} elements")
        if not _disjoint(self.boxes):
            raise ConfigError("index map: two boxes claim the same source index; use one map per copy")

    @classmethod
    def identity(cls, size: int) -> "IndexMap":
        """The map of a whole tensor onto itself."""
        return cls.contiguous(size, 0, size)

    @classmethod
    def contiguous(cls, size: int, dst_offset: int, dst_size: int) -> "IndexMap":
        """One run of ``size`` elements that lands at ``dst_offset``."""
        return cls((Box((size,), 0, (1,), dst_offset, (1,)),), size, dst_size)

    @classmethod
    def from_block(
        cls, local_shape: tuple[int, ...], offsets: tuple[int, ...], full_shape: tuple[int, ...]
    ) -> "IndexMap":
        """The row-major block at ``offsets`` of a row-major tensor of ``full_shape``.

        Raises:
            ConfigError: the lengths differ or the block leaves the tensor.
        """
        if not len(local_shape) == len(offsets) == len(full_shape):
            raise ConfigError(f"block {local_shape} at {offsets} of {full_shape}: lengths differ")
        for size, offset, full in zip(local_shape, offsets, full_shape, strict=True):
            if min(size, offset) < 0 or offset + size > full:
                raise ConfigError(f"block {local_shape} at {offsets} leaves the tensor {full_shape}")
        near, far = row_major(local_shape), row_major(full_shape)
        start = sum(offset * stride for offset, stride in zip(offsets, far, strict=True))
        size = int(np.prod(local_shape, dtype=np.int64))
        boxes = (Box(local_shape, 0, near, start, far),) if size else ()
        return cls(boxes, size, int(np.prod(full_shape, dtype=np.int64)))

    @classmethod
    def permuted(cls, shape: tuple[int, ...], dims: tuple[int, ...]) -> "IndexMap":
        """A row-major tensor of ``shape`` onto its ``permute(dims)``, row-major again.

        Raises:
            ConfigError: ``dims`` is no permutation of the dimensions.
        """
        if sorted(dims) != list(range(len(shape))):
            raise ConfigError(f"dims {dims} do not permute the {len(shape)} dimensions of shape {shape}")
        far = row_major(tuple(shape[dim] for dim in dims))
        strides = tuple(far[dims.index(dim)] for dim in range(len(shape)))
        size = int(np.prod(shape, dtype=np.int64))
        boxes = (Box(shape, 0, row_major(shape), 0, strides),) if size else ()
        return cls(boxes, size, size)

    @property
    def num_mapped(self) -> int:
        """Number of source indices that have a destination."""
        return sum(box.size for box in self.boxes)

    @property
    def shift(self) -> int | None:
        """What is added to every source index when the map is one unit-stride run; None otherwise."""
        if self.src_size == 0:
            return 0
        if len(self.boxes) != 1 or self.num_mapped != self.src_size:
            return None
        box = self.boxes[0]
        unit = box.shape == () or (box.src_strides, box.dst_strides) == ((1,), (1,))
        return box.dst_offset if unit else None

    @property
    def is_complete(self) -> bool:
        """Whether every source index has a destination (nothing is cropped)."""
        return self.num_mapped == self.src_size

    @property
    def is_injective(self) -> bool:
        """Whether no two source indices share a destination."""
        return _disjoint(tuple(box.flipped() for box in self.boxes))

    @property
    def is_onto(self) -> bool:
        """Whether every destination index is reached."""
        return self.is_injective and self.num_mapped == self.dst_size

    def to_far(self, indices: Indices) -> Indices:
        """Destination of each source index [E], int64 [E]; -1 where the source is cropped.

        Indices must lie in the source space. A map that is one unit-stride run costs an add.
        """
        shift = self.shift
        if shift is not None:
            return indices + np.int64(shift)
        whole = len(self.boxes) == 1 and self.is_complete
        if whole:
            return _decode(self.boxes[0], indices)
        if len(self.boxes) > _FEW_BOXES:
            runs = runs_of(self.boxes)
            if runs is not None:
                return decode_runs(runs, indices)
        far = np.full(indices.shape, -1, dtype=np.int64)
        for box in self.boxes:
            inside = _contains(box, indices)
            far[inside] = _decode(box, indices[inside])
        return far

    def to_near(self, indices: Indices) -> Indices:
        """Source of each destination index [E], int64 [E]; -1 where nothing lands there.

        Raises:
            ConfigError: the map is not injective.
        """
        return self.inverse().to_far(indices)

    def to_far_sorted(self, indices: Indices) -> tuple[Indices, Indices | None]:
        """Destinations in ascending order, cropped ones left out, and how to bring values along.

        Returns ``far`` int64 [F] and ``order`` int64 [F]: far[j] belongs to indices[order[j]], so
        values [E] become ``values[order]``. ``order`` is None when nothing moves (F = E). The sort
        is stable.
        """
        far = self.to_far(indices)
        order: Indices | None = None
        if not self.is_complete:
            kept = np.flatnonzero(far >= 0)
            if kept.size != far.size:
                far, order = far[kept], kept
        if far.size > 1 and not bool((far[1:] >= far[:-1]).all()):
            rank = np.argsort(far, kind="stable")
            far, order = far[rank], rank if order is None else order[rank]
        return far, order

    def inverse(self) -> "IndexMap":
        """The map from destination to source.

        Raises:
            ConfigError: the map is not injective.
        """
        if not self.is_injective:
            raise ConfigError("index map: not injective, so it has no inverse")
        return IndexMap(tuple(box.flipped() for box in self.boxes), self.dst_size, self.src_size)

    def restrict(self, start: int, stop: int) -> "IndexMap":
        """The part with sources ``start .. stop - 1``, counted from 0 again: a tensor owned in index ranges.

        Raises:
            ConfigError: the range leaves the source space.
        """
        if not 0 <= start <= stop <= self.src_size:
            raise ConfigError(f"range {start} .. {stop} leaves a source space of {self.src_size} elements")
        parts = (part for box in self.boxes for part in cut(box, start, stop))
        moved = (
            Box(part.shape, part.src_offset - start, part.src_strides, part.dst_offset, part.dst_strides)
            for part in parts
        )
        return IndexMap(tuple(moved), stop - start, self.dst_size)

    def crop(self, start: int, stop: int) -> "IndexMap":
        """The part that lands at ``start .. stop - 1``, with destinations as they are; the rest is cropped.

        Raises:
            ConfigError: the range leaves the destination space.
        """
        if not 0 <= start <= stop <= self.dst_size:
            raise ConfigError(f"range {start} .. {stop} leaves a space of {self.dst_size} elements")
        parts = (part.flipped() for box in self.boxes for part in cut(box.flipped().normal(), start, stop))
        return IndexMap(tuple(parts), self.src_size, self.dst_size)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a dense row-major tensor."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


def _decode(box: Box, indices: Indices) -> Indices:
    """Destinations of indices that are all in ``box``, which is in normal form."""
    left = indices - np.int64(box.src_offset)
    far = np.full(indices.shape, box.dst_offset, dtype=np.int64)
    moved = np.empty_like(left)
    for src, dst in zip(box.src_strides, box.dst_strides, strict=True):
        coordinate = left // np.int64(src) if src != 1 else left
        far += np.multiply(coordinate, np.int64(dst), out=moved)
        if src != 1:
            left -= np.multiply(coordinate, np.int64(src), out=moved)
    return far


def _contains(box: Box, indices: Indices) -> NDArray[np.bool_]:
    left = indices - box.src_offset
    inside: NDArray[np.bool_] = left >= 0
    for size, src in zip(box.shape, box.src_strides, strict=True):
        coordinate = left // src
        inside &= coordinate < size
        left = left - coordinate * src
    inside &= left == 0
    return inside


def _disjoint(boxes: tuple[Box, ...]) -> bool:
    """Whether no source index is in two boxes; exact, and cheap for combs and separate ranges."""
    ordered = sorted((box.normal() for box in boxes), key=lambda box: box.src_offset)
    if all(first.src_last < second.src_offset for first, second in pairwise(ordered)):
        return True
    return not any(
        _meet(first, second)
        for i, first in enumerate(ordered)
        for second in ordered[i + 1 :]
        if second.src_offset <= first.src_last
    )


def _meet(a: Box, b: Box) -> bool:
    if surely_disjoint(a, b):
        return False
    small, large = (a, b) if a.size <= b.size else (b, a)
    return any(
        bool(_contains(large, members(small, start, min(start + _CHUNK, small.size))).any())
        for start in range(0, small.size, _CHUNK)
    )
