"""What one write of the loader means in numbers: boxes from canonical elements to storage elements (B2).

A ``Landing`` is part of one copy: element ``box.src_offset + i . box.src_strides`` of the flat canonical
tensor lands at element ``box.dst_offset + i . box.dst_strides`` of a storage, counted in elements of
``dtype`` from the storage's first byte. One canonical element that feeds several (a broadcast, a
replica) has several landings.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np
import torch

from dcr.errors import ConfigError
from dcr.indexmap import Box, boxes_from_pairs
from dcr.indexmap.box import Dim, nests
from dcr.indexmap.map import row_major
from dcr.receiver.rank import Cover
from dcr.receiver.trace import Kind, Source, Write

MAX_BROADCAST = 256
"""Boxes that one broadcast copy may be split into; a wider one goes through the hook."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Where a rectangular part of a canonical tensor lands.

    ``storage`` is a number of ``Storages``. ``preserving``: the stored bits arrive unchanged, else the
    write is torch's own cast from the catalogue's dtype to ``dtype``, which takes absolute values only.
    ``scalar``: that cast goes through a Python number (``fill_`` of ``item()``); one element.
    """

    storage: int
    box: Box
    dtype: torch.dtype
    preserving: bool
    scalar: bool = False


@dataclass(frozen=True, slots=True)
class Constant:
    """Elements that the loader sets to ``expected`` whatever the weights are (padding).

    The region is ``box`` (destination side) of ``storage`` in elements of ``expected.dtype``;
    ``expected`` lies on the host, has the region's shape and is expanded from one element for a fill.
    ``name`` is the canonical tensor whose load writes it. Elements that a landing covers too are not
    constant: the loader clears before it copies.
    """

    name: str
    storage: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    expected: torch.Tensor


def boxes_of(
    shape: tuple[int, ...],
    src: tuple[int, tuple[int, ...]],
    dst: tuple[int, tuple[int, ...]],
    *,
    limit: int = MAX_BROADCAST,
) -> tuple[Box, ...]:
    """Boxes of a copy of ``shape`` between two (offset, strides); broadcast dimensions are split.

    Raises:
        ConfigError: a side names one element twice, or the broadcast needs more than ``limit`` boxes.
    """
    (src_offset, src_strides), (dst_offset, dst_strides) = src, dst
    dims = [dim for dim in zip(shape, src_strides, dst_strides, strict=True) if dim[0] != 1]
    repeated = [dim for dim in dims if dim[1] == 0]
    if not repeated:
        return (_box(dims, src_offset, dst_offset),)
    if prod(dim[0] for dim in repeated) > limit:
        raise ConfigError(f"a broadcast into {prod(dim[0] for dim in repeated)} places")
    if not nests(tuple(dim[0] for dim in dims), tuple(dim[2] for dim in dims)):
        raise ConfigError("a broadcast whose destination names one element twice")
    kept = [dim for dim in dims if dim[1] != 0]
    starts = [dst_offset]
    for size, _, stride in repeated:
        starts = [start + i * stride for start in starts for i in range(size)]
    return tuple(_box(kept, src_offset, start) for start in starts)


def _box(dims: list[Dim], src_offset: int, dst_offset: int) -> Box:
    """The normal form of a box: dimensions by descending source stride, merged."""
    shape, src_strides, dst_strides = _merged(tuple(dims))
    return Box(shape, src_offset, src_strides, dst_offset, dst_strides)


@lru_cache(maxsize=4096)
def _merged(dims: tuple[Dim, ...]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in normal form. Layers and experts are alike, so the answer is mostly known."""
    merged: list[Dim] = []
    for size, src, dst in sorted(dims, key=lambda dim: -dim[1]):
        if merged and merged[-1][1:] == (size * src, size * dst):
            merged[-1] = (merged[-1][0] * size, src, dst)
        else:
            merged.append((size, src, dst))
    shape, src_strides, dst_strides = (tuple(dim[i] for dim in merged) for i in range(3))
    return shape, src_strides, dst_strides


def landings_of(write: Write, dtype: torch.dtype) -> tuple[Landing, ...]:
    """The landings of a COPY or SCALAR of a tensor whose catalogue type is ``dtype``.

    Raises:
        ConfigError: says why the copy is no set of boxes that carry stored bits or one plain cast.
    """
    source = write.source
    assert source is not None
    preserving = _preserving(write, source, dtype)
    boxes = boxes_of(write.shape, (source.offset, source.strides), (write.offset, write.strides))
    scalar = write.kind is Kind.SCALAR
    return tuple(Landing(write.storage, box, write.dtype, preserving, scalar) for box in boxes)


def _preserving(write: Write, source: Source, dtype: torch.dtype) -> bool:
    if source.dtype.itemsize != (source.through or dtype).itemsize:
        raise ConfigError(f"the loader reads it as {source.dtype}, not as {dtype}")
    if write.kind is Kind.COPY and source.through is None and source.dtype == write.dtype:
        return True
    if source.through is not None and write.dtype != source.through:
        raise ConfigError(f"it is cast twice, to {source.through} and to {write.dtype}")
    if source.dtype != (source.through or dtype):
        raise ConfigError(f"its bits are read as {source.dtype} and cast")
    return False


def targets_of(write: Write) -> tuple[Box, ...]:
    """Boxes of what ``write`` stores, whatever it stores; their source side counts its elements.

    Raises:
        ConfigError: the destination names one element twice.
    """
    return boxes_of(write.shape, (0, row_major(write.shape)), (write.offset, write.strides))


def cover_of_source(write: Write) -> Cover:
    """The canonical elements that a COPY reads, where its boxes do not say: runs of single elements."""
    source = write.source
    assert source is not None
    index = np.zeros((1,), dtype=np.int64) + source.offset
    for n, s in zip(write.shape, source.strides, strict=True):
        index = np.unique((index[:, None] + np.arange(n if s else 1, dtype=np.int64) * s).reshape(-1))
    boxes = boxes_from_pairs(index, index)
    return tuple((box.src_offset, tuple(zip(box.shape, box.src_strides, strict=True))) for box in boxes)


def cover_of(landings: tuple[Landing, ...]) -> Cover:
    """The canonical elements that ``landings`` place, each box once, casts included."""
    boxes = dict.fromkeys(
        (box.src_offset, tuple(zip(box.shape, box.src_strides, strict=True)))
        for box in (landing.box for landing in landings)
    )
    return tuple(boxes)
