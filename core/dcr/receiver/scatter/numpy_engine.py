"""Scatter and read back with numpy: for small batches and where nothing can be compiled.

Shape legend: E positions, F of them inside a box.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.codec import Positions
from dcr.indexmap import Box
from dcr.receiver.lanes import LANES
from dcr.receiver.scatter.batch import Action, Entries, Indices, Readback, of_width
from dcr.receiver.scatter.plan import Plan

Selector: TypeAlias = slice | NDArray[np.intp]


def scatter(plan: Plan, batch: Sequence[Entries]) -> list[int]:
    """Write ``batch``; how many elements of each were written, replicas included."""
    return [
        sum(_scatter_box(plan, number, entries) for number in plan.boxes_of(entries.row)) for entries in batch
    ]


def read(plan: Plan, batch: Sequence[tuple[int, Positions]]) -> list[Readback]:
    """What storage holds for (row, positions [E])."""
    return [_read(plan, row, positions) for row, positions in batch]


def resolve(box: Box, positions: Positions) -> tuple[Selector, Indices]:
    """Which of ``positions`` [E] lie in ``box``, and the offset int64 [F] of each of them.

    ``box`` is in normal form. Positions ascend; if they do not, some are missed, but no offset is wrong.
    """
    low, high = np.searchsorted(positions, (box.src_offset, box.src_last + 1))
    near = positions[low:high].astype(np.int64) - box.src_offset
    if len(box.shape) == 1 and box.src_strides[0] == 1 and _all_within(near, box.shape[0]):
        return slice(int(low), int(high)), near * box.dst_strides[0] + box.dst_offset
    inside = near >= 0
    offsets = np.full(near.shape, box.dst_offset, dtype=np.int64)
    for size, src, dst in zip(box.shape, box.src_strides, box.dst_strides, strict=True):
        steps = near // src
        near = near - steps * src
        inside &= steps < size
        offsets += steps * dst
    inside &= near == 0
    return np.flatnonzero(inside) + int(low), offsets[inside]


def _all_within(near: Indices, size: int) -> bool:
    return near.size == 0 or (int(near.min()) >= 0 and int(near.max()) < size)


def flat(plan: Plan, number: int, width_bytes: int) -> NDArray[Any]:
    """Storage ``number`` on the host as unsigned bits."""
    view: NDArray[Any] = plan.stores.flat(number, LANES[width_bytes]).numpy().view(of_width(width_bytes))
    return view


def merge(found: NDArray[Any], held: NDArray[np.bool_], at: Selector, got: NDArray[Any]) -> bool:
    """Note ``got`` at ``at``; whether it agrees with what was noted there before."""
    again = held[at]
    agrees = not again.any() or bool((found[at][again] == got[again]).all())
    found[at] = np.where(again, found[at], got)
    held[at] = True
    return agrees


def _scatter_box(plan: Plan, number: int, entries: Entries) -> int:
    at, offsets = resolve(plan.box(number), entries.positions)
    target = flat(plan, plan.store_of(number), entries.values.itemsize)
    if entries.action is Action.SET:
        target[offsets] = entries.values[at]
    elif entries.action is Action.XOR:
        target[offsets] ^= entries.values[at]
    else:
        target[offsets] += entries.values[at]
    return int(offsets.size)


def _read(plan: Plan, row: int, positions: Positions) -> Readback:
    width = int(plan.widths[row])
    found = np.zeros(positions.shape, dtype=of_width(width))
    held = np.zeros(positions.shape, dtype=bool)
    differs = -1
    for number in plan.boxes_of(row):
        at, offsets = resolve(plan.box(number), positions)
        if not merge(found, held, at, flat(plan, plan.store_of(number), width)[offsets]):
            differs = number
    return Readback(found, held, differs)
