"""Compiled loops over runs that are stored as runs, which is most of every model; see ``compiled``."""

from typing import Any

import numpy as np

from dcr.receiver.scatter.addresses import kept

_U = np.uint64


@kept
def way(positions: Any, box: Any) -> Any:
    """From which position to go through a run, and which way: forward, or back from the end.

    To look for the other end of what lies inside would take longer than to meet it.
    """
    if positions.size and positions[0] < box.src:
        if positions[positions.size - 1] <= box.last:
            return _U(positions.size - 1), _U(positions.size), ~_U(0)
        low = _U(np.searchsorted(positions, box.src))
        return low, _U(positions.size) - low, _U(1)
    return _U(0), _U(positions.size), _U(1)


@kept
def set_run(resident: Any, positions: Any, values: Any, first: Any, way: Any) -> Any:
    """Write what lies in ``resident``, whose first element is that of position ``first``; how many."""
    i, num, step = way
    size = _U(resident.size)
    for count in range(num):
        at = _U(positions[i]) - first
        if at >= size:
            return count
        resident[at] = values[i]
        i += step
    return num


@kept
def xor_run(resident: Any, positions: Any, values: Any, first: Any, way: Any) -> Any:
    """The same for masks."""
    i, num, step = way
    size = _U(resident.size)
    for count in range(num):
        at = _U(positions[i]) - first
        if at >= size:
            return count
        resident[at] ^= values[i]
        i += step
    return num


@kept
def add_run(resident: Any, positions: Any, values: Any, first: Any, way: Any) -> Any:
    """The same for differences."""
    i, num, step = way
    size = _U(resident.size)
    for count in range(num):
        at = _U(positions[i]) - first
        if at >= size:
            return count
        resident[at] += values[i]
        i += step
    return num
