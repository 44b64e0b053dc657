"""Positions of changed elements as bytes: runs, strides, gaps (paper Appendix D). Shapes: E entries.

A gap is the number of elements skipped since the previous entry (since -1 for the first), so
every sequence of gaps decodes to strictly increasing locations; only their end must be checked.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec.engines import Bytes, Indices
from dcr.codec.kinds import GAP_DTYPES, RUN
from dcr.errors import PayloadError

ESCAPE = 255
"""A byte of this value adds so many to the gap and is followed by more."""


def encode_locations(locations: Indices) -> tuple[int, int, bytes]:
    """Return (location type, start index of a run or 0, bytes for the location buffer), as published.

    ``locations`` are int64 [E], strictly increasing from 0 or more. None at all is the run at 0.
    """
    if not len(locations):
        return RUN, 0, b""
    start, end = int(locations[0]), int(locations[-1])
    if end - start == len(locations) - 1:
        return RUN, start, b""
    gaps = gaps_of(locations, 0)
    width = _smallest_width(int(gaps.max()))
    return width, 0, gaps.astype(GAP_DTYPES[width]).tobytes()


def gaps_of(locations: Indices, base: int) -> Indices:
    """Gaps [E > 0]; the first counts from ``base``."""
    return np.diff(locations, prepend=np.int64(base - 1)) - 1


def _smallest_width(largest: int) -> int:
    return next(width for width in GAP_DTYPES if largest < 1 << (8 * width))


def decode_run(start: int, num_entries: int, num_elements: int) -> Indices:
    """Locations start .. start + num_entries - 1, int64 [E].

    Raises:
        PayloadError: the run leaves the tensor of ``num_elements``, or is empty but not at 0.
    """
    if start + num_entries > num_elements or (not num_entries and start):
        raise PayloadError(f"a run of {num_entries} from {start} is not within {num_elements} elements")
    return np.arange(start, start + num_entries, dtype=np.int64)


def decode_strided(start: int, num_entries: int, num_elements: int, block: int, period: int) -> Indices:
    """Blocks of ``block`` elements, one every ``period`` from ``start``, int64 [E].

    Raises:
        PayloadError: they overlap, leave the tensor of ``num_elements`` or do not hold the entries exactly.
    """
    if not 0 < block < period or num_entries % block or not num_entries:
        raise PayloadError(f"{num_entries} entries are not blocks of {block} every {period} elements")
    count = num_entries // block
    if start + (count - 1) * period + block > num_elements:
        raise PayloadError(f"{count} blocks from {start}, {period} apart, leave the {num_elements} elements")
    # a single block may have any period
    firsts = start + np.arange(count, dtype=np.int64) * (period if count > 1 else 0)
    return (firsts[:, None] + np.arange(block, dtype=np.int64)).reshape(-1)


def decode_gaps(gaps: NDArray[np.unsignedinteger[Any]], num_elements: int) -> Indices:
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


def encode_escaped(gaps: Indices) -> Bytes:
    """Each of ``gaps`` [E > 0] as bytes of 255, one for every 255 in it, and a byte for the rest."""
    escapes = gaps // ESCAPE
    ends = np.cumsum(escapes + 1) - 1
    coded = np.full(int(ends[-1]) + 1, ESCAPE, np.uint8)
    coded[ends] = gaps - ESCAPE * escapes
    return coded


def decode_escaped(coded: Bytes, num_elements: int) -> Indices:
    """Locations of gaps with escapes; ``coded`` [> 0] ends with a gap's last byte.

    Raises:
        PayloadError: they leave the tensor of ``num_elements``.
    """
    is_end = coded < ESCAPE
    ends = np.cumsum(coded.astype(np.int64) + is_end)[is_end]  # below 2**8 for each byte in memory
    if int(ends[-1]) > num_elements:
        raise PayloadError(f"gaps lead beyond the {num_elements} elements")
    ends -= 1
    return ends
