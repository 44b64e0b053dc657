"""Compiled loops over rows of neighbours of which positions hit a part; see ``compiled``.

Which positions lie inside is found for 64 at once, without a branch or a store, and only those are walked:
a guess for each would be wrong as often as right, and lists of them would wait, as all stores do, behind
writes that miss the cache.
"""

from typing import Any

import numpy as np

from dcr.receiver.scatter.addresses import kept
from dcr.receiver.scatter.vectors import inside, lowest, num_set

_U = np.uint64
GROUP = 64
FAR = 1 << 31
"""Extent of a box from which the division by a product is no longer exact."""


@kept
def _rows_of(spot: Any) -> Any:
    """What ``inside`` needs of a box: first, inverse, shift, pitch, size, rows."""
    box, dims = spot
    outer, inner = dims[box.dim], dims[box.dim + 1]
    pitch, shift = _U(outer.src), _U(31)
    while _U(1) << (shift - _U(31)) < pitch:
        shift += _U(1)
    inverse = ((_U(1) << shift) + pitch - _U(1)) // pitch
    return _U(box.src), inverse, shift, pitch, _U(inner.size), _U(outer.size)


@kept
def _steps(spot: Any) -> Any:
    """Offset of a box, by how much it grows with a position, and by how much more with a row."""
    box, dims = spot
    outer, inner = dims[box.dim], dims[box.dim + 1]
    step = _U(inner.dst)
    return _U(box.dst), step, _U(outer.dst) - _U(outer.src) * step


@kept
def _found(positions: Any, start: Any, rows: Any) -> Any:
    """Which of the 64 positions from ``start`` lie inside, as bits."""
    width, bits = _U(positions.itemsize), _U(0)
    address = _U(positions.ctypes.data) + start * width
    for lane in range(_U(0), _U(GROUP), _U(8)):
        bits |= inside(address + lane * width, rows, positions) << lane
    return bits


@kept
def set_rows(resident: Any, positions: Any, values: Any, spot: Any) -> Any:
    """Write what lies inside, of at least 64 contiguous ``positions``; how many elements.

    The last group may begin inside the one before: what that had is taken away.
    """
    rows, total = _rows_of(spot), _U(0)
    last = _U(positions.size - GROUP)
    first, inverse, shift, _, _, _ = rows
    offset, step, jump = _steps(spot)
    for start in range(_U(0), _U(positions.size), _U(GROUP)):
        begin: Any = min(start, last)
        bits = _found(positions, begin, rows) >> (start - begin) << (start - begin)
        total += num_set(bits)
        while bits:
            i = begin + lowest(bits)
            bits &= bits - _U(1)
            at = _U(positions[i]) - first
            resident[offset + at * step + (at * inverse >> shift) * jump] = values[i]
    return total
