"""Maps of many boxes as one sorted list of runs: permutation tables (DESIGN section 4)."""

from typing import TypeAlias

import numpy as np

from dcr.indexmap.box import Box, Indices, members

Runs: TypeAlias = tuple[Indices, Indices, Indices, Indices]
"""First source, length, first destination and destination step of runs of unit source step, ascending."""


def runs_of(boxes: tuple[Box, ...]) -> Runs | None:
    """All innermost rows of boxes in normal form; None if one of them has gaps, where others may lie."""
    columns: list[list[Indices]] = [[], [], [], []]
    for box in boxes:
        if box.shape and box.src_strides[-1] != 1:
            return None
        count, step = (box.shape[-1], box.dst_strides[-1]) if box.shape else (1, 1)
        outer = Box(
            box.shape[:-1], box.src_offset, box.src_strides[:-1], box.dst_offset, box.dst_strides[:-1]
        )
        starts = members(outer, 0, outer.size)
        rows = starts, np.full(starts.size, count), members(outer.flipped(), 0, outer.size), None
        for column, values in zip(columns, rows, strict=True):
            column.append(np.full(starts.size, step) if values is None else values)
    start, count_, far, step_ = (np.concatenate(column).astype(np.int64) for column in columns)
    order = np.argsort(start)
    return start[order], count_[order], far[order], step_[order]


def decode_runs(runs: Runs, indices: Indices) -> Indices:
    """Destination of each index [E], -1 outside all runs: one binary search each."""
    start, count, far, step = runs
    at = np.searchsorted(start, indices, side="right") - 1
    inside = indices - start[at]
    kept = (at >= 0) & (inside < count[at])
    return np.where(kept, far[at] + inside * step[at], np.int64(-1))
