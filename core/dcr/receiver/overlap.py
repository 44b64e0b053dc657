"""Which destinations of a loader overlap, and whether their writes always agree (Table A.2, DESIGN R12).

Two writes of one element agree if they carry the same canonical element (tied names share theirs) in the
same way. Then overwrites are exact in any order, while XOR would cancel. Extents that do not meet, combs
whose teeth do not, and equal writes are told apart by their numbers; only what is left is enumerated, in
chunks, so memory does not follow the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import numpy as np

from dcr.indexmap import Box, IndexMap
from dcr.indexmap.box import members, surely_disjoint
from dcr.receiver.trace import Extent, Kind, Write

_CHUNK = 1 << 20


class Region(NamedTuple):
    """One write of ``name`` (a canonical name) whose bits are those of canonical tensor ``root``.

    ``boxes`` lie in elements of the write's dtype. ``placed``: their source side is the canonical tensor's;
    else it means nothing. ``extent`` is that of ``write``; ``order`` counts the writes of a name.
    """

    name: str
    root: int
    order: int
    write: Write
    extent: Extent
    boxes: tuple[Box, ...]
    placed: bool = True


@dataclass(slots=True)
class Overlaps:
    """Findings by name. ``shared``: some element is written twice, with equal contents.

    ``clashes``: the name's own writes differ, so that their order counts. ``conflicts``: another name
    writes the element with other contents.
    """

    shared: set[str] = field(default_factory=set)
    clashes: set[str] = field(default_factory=set)
    conflicts: dict[str, str] = field(default_factory=dict)


def find_overlaps(regions: list[Region], groups: dict[str, str]) -> Overlaps:
    """Compare every pair of regions that meet, except within one of ``groups`` (see ``Links.root``)."""
    found = Overlaps()
    for a, b in _meeting(regions):
        if a.name in groups and groups[a.name] == groups.get(b.name):
            continue
        if _equal(a, b):
            found.shared.update((a.name, b.name))
        else:
            _compare(a, b, found)
    return found


def _meeting(regions: list[Region]) -> Iterator[tuple[Region, Region]]:
    """Pairs whose extents meet, each once, the one that starts first in front."""
    ordered = sorted(((region.extent, i) for i, region in enumerate(regions)))
    open_: list[tuple[int, int]] = []
    storage = -1
    for (number, start, stop), i in ordered:
        if number != storage:
            storage, open_ = number, []
        open_ = [(end, j) for end, j in open_ if end > start]
        for _, j in open_:
            yield regions[j], regions[i]
        open_.append((stop, i))


def _equal(a: Region, b: Region) -> bool:
    """Whether both store the same contents in the same elements."""
    if a.write.kind is Kind.COMPUTED or (a.root != b.root and a.write.kind is not Kind.CONSTANT):
        return False
    return a.write == b.write


def _compare(a: Region, b: Region, found: Overlaps) -> None:
    if a.name == b.name and Kind.CONSTANT in (a.write.kind, b.write.kind):
        cleared = a if a.write.kind is Kind.CONSTANT else b
        other = b if cleared is a else a
        if other.write.kind is Kind.CONSTANT or cleared.order < other.order:
            return  # cleared, then written
    if a.write.kind is Kind.CONSTANT and a.write.what == b.write.what and a.write.uniform:
        return
    meets, agrees = _meet(a, b)
    if not meets:
        return
    if agrees:
        found.shared.update((a.name, b.name))
    elif a.name == b.name:
        found.clashes.add(a.name)
    else:
        for one, two in ((a, b), (b, a)):
            found.conflicts.setdefault(one.name, two.name)


def _meet(a: Region, b: Region) -> tuple[bool, bool]:
    """Whether the regions share an element, and whether all shared ones get equal contents."""
    same = _comparable(a, b)
    meets, agrees = False, True
    widths = a.write.dtype.itemsize, b.write.dtype.itemsize
    for one, two in product(a.boxes, b.boxes):
        if widths[0] != widths[1]:
            one, two = _in_bytes(one, widths[0]), _in_bytes(two, widths[1])
        for here, there in _shared_elements(one, two):
            meets = True
            agrees = agrees and same and bool((here == there).all())
            if not agrees:
                return True, False
    return meets, agrees


def _comparable(a: Region, b: Region) -> bool:
    """Whether equal canonical elements mean equal contents."""
    one, two = a.write, b.write
    if one.kind is Kind.CONSTANT and two.kind is Kind.CONSTANT:
        return False
    if (
        not (a.placed and b.placed)
        or one.source is None
        or two.source is None
        or a.root != b.root
        or one.kind is not two.kind
    ):
        return False
    how = (one.dtype, one.source.dtype, one.source.through)
    return how == (two.dtype, two.source.dtype, two.source.through)


def _shared_elements(a: Box, b: Box) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Canonical indices by ``a`` and by ``b`` of the destinations that both write, chunk after chunk."""
    if surely_disjoint(a.flipped(), b.flipped()):
        return
    small, large = (a, b) if a.size <= b.size else (b, a)
    back = IndexMap((large.flipped(),), large.dst_last + 1, large.src_last + 1)
    for start in range(0, small.size, _CHUNK):
        stop = min(start + _CHUNK, small.size)
        at = members(small.flipped(), start, stop)
        there = np.full(at.shape, -1, dtype=np.int64)
        within = at <= large.dst_last
        there[within] = back.to_far(at[within])
        if (there >= 0).any():
            yield members(small, start, stop)[there >= 0], there[there >= 0]


def _in_bytes(box: Box, width: int) -> Box:
    shape = (*box.shape, width)
    src = (*(stride * width for stride in box.src_strides), 1)
    dst = (*(stride * width for stride in box.dst_strides), 1)
    return Box(shape, box.src_offset * width, src, box.dst_offset * width, dst)
