"""Which location type an item takes: the one with the fewest bits, by exact counts or on a sample.

Rice codes come within 2% of the bound for positions that are spread evenly (gaps are geometric), and
compressing their unary bits takes most of that back. Blocks with masks suit clusters; bytes of gaps in
planes or with escapes suit gaps that repeat. Shapes: E entries, G gaps of the sample.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec.engines import Indices
from dcr.codec.kinds import (
    BLOCK,
    BLOCKS,
    ESCAPED,
    MAX_LOW_BITS,
    PLANES,
    RICE,
    RUN,
    STRIDED,
    is_blocks,
    is_rice,
)
from dcr.codec.vectorized import Vectorized

ESCAPE = 255
"""A byte of this value adds so many to the gap and is followed by more."""
_SLICES, _SLICE = 8, 2048
_BYTES_FROM = 4096
"""Entries from which gaps as bytes are considered: shorter items share their frequencies with others."""
_MASKS_FROM = 128
"""Masks from which their byte frequencies say how far they can be compressed."""
_PARAMETER = 64
"""Bits of the number of blocks."""
_BETTER = 0.985
"""Another type must need this share of what Rice codes need: estimates are as good as that."""
_FAR = 24
"""Unary bits of a first gap from which a start offset is cheaper: it costs about three bytes in the table."""
_MAX_HIGH = 6
"""Most unary bits a gap on average, which keeps their section below a byte an entry."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Location type id, and what it counts from: a start index, or an offset of all gaps."""

    location_type: int
    base: int
    parameters: tuple[int, ...] = ()


def plan_locations(locations: Indices) -> Plan:
    """Choose for ``locations`` [E], strictly increasing from 0 or more."""
    if not len(locations):
        return Plan(RUN, 0)
    first, last = int(locations[0]), int(locations[-1])
    if last - first == len(locations) - 1:
        return Plan(RUN, first)
    strided = _strided(locations)
    if strided is not None:
        return Plan(STRIDED, first, strided)
    parts = _slices(locations)
    gaps = np.concatenate([np.diff(part) for part in parts]) - 1
    skipped = last - first + 1 - len(locations)
    least = least_low_bits(skipped, len(locations) - 1)
    low_bits, bits = best_low_bits(gaps, least)
    best = (_BETTER * bits, RICE + low_bits)
    best = min(best, _blocks(parts, len(gaps)))
    if len(locations) >= _BYTES_FROM:
        ways = [way for way in _gap_bytes(gaps, len(locations), skipped) if way < best]
        best = next((way for way in sorted(ways) if _fits(way[1], locations)), best)
    return Plan(best[1], _base(first, best[1], skipped // (len(locations) - 1)))


def _base(first: int, location_type: int, mean_gap: int) -> int:
    """0, or near ``first`` where counting from 0 would take more bits than a number in the table."""
    if is_blocks(location_type):
        return first - first % BLOCK if first // BLOCK >> (location_type - BLOCKS) > _FAR else 0
    if is_rice(location_type):
        return first if first >> (location_type - RICE) > _FAR else 0
    return first if first > _FAR * (mean_gap + 1) or first >= 1 << 16 else 0


def _strided(locations: Indices) -> tuple[int, int] | None:
    """Block length and period if ``locations`` are equal blocks at equal distances."""
    start, num_entries = int(locations[0]), len(locations)
    block = _run_length(locations)
    count, rest = divmod(num_entries, block)
    period = int(locations[block]) - start
    if rest or count < 3 or int(locations[-1]) != start + (count - 1) * period + block - 1:
        return None
    firsts, lasts = locations[::block], locations[block - 1 :: block]
    expected = start + period * np.arange(count, dtype=np.int64)
    if not np.array_equal(firsts, expected) or bool((lasts - firsts != block - 1).any()):
        return None
    return block, period


def _run_length(locations: Indices) -> int:
    """Entries before the first gap; there is one."""
    length = 16
    while True:
        breaks = np.flatnonzero(np.diff(locations[: length + 1]) != 1)
        if len(breaks):
            return int(breaks[0]) + 1
        length *= 8


def _slices(locations: Indices) -> list[Indices]:
    """All of a short item, else slices spread over it."""
    if len(locations) <= _SLICES * _SLICE:
        return [locations]
    step = (len(locations) - _SLICE - 1) // (_SLICES - 1)
    return [locations[at * step : at * step + _SLICE + 1] for at in range(_SLICES)]


def best_low_bits(gaps: Indices, least: int = 0) -> tuple[int, float]:
    """Low bits k, ``least`` or more, for ``gaps`` [G > 0], and the bits a gap of that Rice code."""
    mean = float(gaps.mean())
    guess = max(0, int(log2(mean * 0.69))) if mean > 1.5 else 0
    tried = range(max(least, guess - 1), max(least, min(guess + 1, MAX_LOW_BITS)) + 1)
    bits, low_bits = min((_rice_bits(gaps, k), k) for k in tried)
    return low_bits, bits


def _rice_bits(gaps: Indices, low_bits: int) -> float:
    """Low bits are stored as they are; unary ones are compressed by their bytes' frequencies."""
    unary = 1 + float((gaps >> low_bits).sum()) / len(gaps)
    share = 1 / unary
    entropy = -unary * (share * log2(share) + (1 - share) * log2(1 - share)) if unary > 1 else 0.0
    return low_bits + min(unary, max(1.005 * entropy, unary / 64))


def least_low_bits(skipped: int, num_gaps: int) -> int:
    """Low bits from which ``num_gaps`` that skip as many elements have at most 6 unary bits on average.

    One far gap that no sample shows would else become a river of them.
    """
    return (skipped // (_MAX_HIGH * num_gaps)).bit_length()


def _blocks(parts: list[Indices], num_gaps: int) -> tuple[float, int]:
    """Bits a gap and type id of blocks with masks."""
    ids = [part // BLOCK for part in parts]
    gaps = np.concatenate([np.diff(part) for part in ids]) - 1
    gaps = gaps[gaps >= 0]
    if not len(gaps) or 2.5 * len(gaps) > num_gaps:
        return float("inf"), BLOCKS
    low_bits, bits = best_low_bits(gaps)
    num_blocks = len(gaps) + len(parts)
    masks = np.concatenate([Vectorized().mask(part, 0)[1] for part in parts])
    mask_bits = float(BLOCK * num_blocks)
    if num_blocks >= _MASKS_FROM:
        mask_bits = min(mask_bits, byte_bits(np.bincount(masks.view(np.uint8), minlength=256)))
    return (_PARAMETER + bits * num_blocks + mask_bits) / num_gaps, BLOCKS + low_bits


def _gap_bytes(gaps: Indices, num_entries: int, skipped: int) -> Iterator[tuple[float, int]]:
    """Bits a gap and type id of ways to send gaps as bytes, as far as the sample tells."""
    if skipped < 3 * ESCAPE * num_entries:
        counts = np.bincount(gaps % ESCAPE, minlength=256)
        counts[ESCAPE] = int((gaps // ESCAPE).sum())
        yield byte_bits(counts) / len(gaps), ESCAPED
    largest = int(gaps.max())
    for kind, width in PLANES.items():
        if largest < 1 << (8 * width):
            planes = (np.bincount((gaps >> shift) & 255, minlength=256) for shift in range(0, 8 * width, 8))
            yield sum(map(byte_bits, planes)) / len(gaps), kind
            return


def _fits(location_type: int, locations: Indices) -> bool:
    """Whether all gaps fit, not only those of the sample."""
    return location_type == ESCAPED or int(np.diff(locations).max()) <= 1 << (8 * PLANES[location_type])


def byte_bits(counts: NDArray[np.integer[Any]]) -> float:
    """Bits that zstd makes of bytes of these ``counts`` [256]: by Huffman, or matches if one byte rules."""
    num_bytes, most = int(counts.sum()), int(counts.max())
    present = counts[counts > 0]
    lengths = np.maximum(1.0, np.log2(num_bytes / present))
    # frequencies of a sample look more uneven than they are (Miller and Madow)
    huffman = float((present * lengths).sum()) + 0.72 * (len(present) - 1)
    return min(huffman, 24.0 * (num_bytes - most) + num_bytes / 64)
