"""Reads a range of a canonical tensor back from resident storage, in memory bounded by the range (B6).

Shape legend: n = stop - start elements of the range.
"""

from collections.abc import Iterator

import numpy as np
import torch

from dcr.indexmap import Box
from dcr.receiver.lanes import LANES
from dcr.receiver.scatter.batch import Readback, of_width
from dcr.receiver.scatter.plan import Plan


def read_range(plan: Plan, row: int, start: int, stop: int) -> Readback:
    """What storage holds for canonical indices start .. stop - 1 of ``row``; every box is compared."""
    width = int(plan.widths[row])
    found = torch.zeros(stop - start, dtype=LANES[width])
    held = torch.zeros(stop - start, dtype=torch.bool)
    differs, anything = -1, False
    for number in plan.boxes_of(row):
        resident = plan.stores.flat(plan.store_of(number), LANES[width])
        again = anything  # one box takes no element twice
        for part in clip(plan.box(number), start, stop):
            anything = True
            if not _take(resident, part, found, held, again=again):
                differs = number
    return Readback(found.numpy().view(of_width(width)), held.numpy(), differs)


def clip(box: Box, start: int, stop: int) -> Iterator[Box]:
    """Boxes of the pairs of ``box`` (in normal form) whose source lies in start .. stop - 1.

    Their source offsets count from ``start``. At most 2 a dimension and one.
    """
    if box.src_last < start or box.src_offset >= stop:
        return
    if start <= box.src_offset and box.src_last < stop:
        yield Box(box.shape, box.src_offset - start, box.src_strides, box.dst_offset, box.dst_strides)
        return
    size, src, dst = box.shape[0], box.src_strides[0], box.dst_strides[0]
    reach = box.src_last - box.src_offset - (size - 1) * src  # of one step of the outermost dimension
    first = max(-((box.src_offset - start) // src), 0)  # of the steps that lie within the range
    last = min((stop - 1 - reach - box.src_offset) // src, size - 1)
    whole = [(first, last - first + 1)] if last >= first else []
    cut = {max((start - box.src_offset) // src, 0), min((stop - 1 - box.src_offset) // src, size - 1)}
    for step, count in [*whole, *((step, 0) for step in sorted(cut) if not first <= step <= last)]:
        shape, outer_src, outer_dst = ((count,), (src,), (dst,)) if count else ((), (), ())
        part = Box(
            (*shape, *box.shape[1:]),
            box.src_offset + step * src,
            (*outer_src, *box.src_strides[1:]),
            box.dst_offset + step * dst,
            (*outer_dst, *box.dst_strides[1:]),
        )
        yield from clip(part, start, stop)


def _take(resident: torch.Tensor, part: Box, found: torch.Tensor, held: torch.Tensor, *, again: bool) -> bool:
    """Copy ``part`` into the range; if ``again``, compare it with what is held. Whether storage agrees."""
    near = found.as_strided(part.shape, part.src_strides, part.src_offset)
    mark = held.as_strided(part.shape, part.src_strides, part.src_offset)
    far = resident.as_strided(part.shape, part.dst_strides, part.dst_offset)
    if not again or not bool(mark.any()):
        near.copy_(far)
        mark.fill_(True)
        return True
    got = torch.empty_like(near, memory_format=torch.contiguous_format).copy_(far)
    agrees = bool(((got == near) | ~mark).all())
    near.copy_(torch.where(mark, near, got))
    mark.fill_(True)
    return agrees


def runs_of(mask: np.ndarray) -> list[tuple[int, int]]:
    """Runs (first, one past the last) in which ``mask`` bool [n] is set; quick where all of it is."""
    if mask.all():
        return [(0, mask.size)] if mask.size else []
    edges = np.flatnonzero(np.diff(mask.view(np.int8), prepend=0, append=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
