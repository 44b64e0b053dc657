"""Positions of changed elements as bytes: a run's start, or gaps (paper Appendix D). Shapes: E entries.

A gap is the number of elements skipped since the previous entry (since -1 for the first), so
every sequence of gaps decodes to strictly increasing locations; only their end must be checked.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.errors import PayloadError

RUN = 0
GAP_DTYPES: dict[int, np.dtype[np.unsignedinteger[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
"""Location type id (also the width in bytes) of gap-coded locations; RUN is 0. Later codings append."""


def encode_locations(locations: NDArray[np.int64]) -> tuple[int, int, bytes]:
    """Return (location type, start index of a run or 0, bytes for the location buffer).

    ``locations`` are int64 [E], strictly increasing from 0 or more. None at all is the run at 0.
    """
    if not len(locations):
        return RUN, 0, b""
    start, end = int(locations[0]), int(locations[-1])
    if end - start == len(locations) - 1:
        return RUN, start, b""
    gaps = np.diff(locations, prepend=np.int64(-1)) - 1
    width = _smallest_width(int(gaps.max()))
    return width, 0, gaps.astype(GAP_DTYPES[width]).tobytes()


def _smallest_width(largest: int) -> int:
    return next(width for width in GAP_DTYPES if largest < 1 << (8 * width))


def decode_run(start: int, num_entries: int, num_elements: int) -> NDArray[np.int64]:
    """Locations start .. start + num_entries - 1, int64 [E].

    Raises:
        PayloadError: the run leaves the tensor of ``num_elements``, or is empty but not at 0.
    """
    if start + num_entries > num_elements or (not num_entries and start):
        raise PayloadError(f"a run of {num_entries} from {start} is not within {num_elements} elements")
    return np.arange(start, start + num_entries, dtype=np.int64)


def decode_gaps(gaps: NDArray[np.unsignedinteger[Any]], num_elements: int) -> NDArray[np.int64]:
    """Locations of ``gaps``, unsigned [E] with E > 0, as a new int64 [E].

    Raises:
        PayloadError: they leave the tensor of ``num_elements`` (at most 2**63 - 1).
    """
    if int(gaps.max()) >= num_elements:
        raise PayloadError(f"a gap of {int(gaps.max())} is not within {num_elements} elements")
    ends = gaps.astype(np.uint64)
    ends += np.uint64(1)
    np.cumsum(ends, out=ends)
    # every step is in [1, 2**63 - 1]: a sum that wraps around modulo 2**64 falls at that very step
    if int(ends[-1]) > num_elements or bool((ends[1:] <= ends[:-1]).any()):
        raise PayloadError(f"gaps lead beyond the {num_elements} elements")
    ends -= np.uint64(1)
    return ends.view(np.int64)
