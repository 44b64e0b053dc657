"""Which location type an item takes: the one with the fewest bytes, by exact counts or on a sample.

Where changes are spread evenly, gaps are geometric: Rice codes of them come within 2% of the bound, and
compressing their unary bits takes most of that back. A few counts tell, and such items, nearly all, are
done. The others are tried: blocks with masks suit clusters, bytes of gaps in planes or with escapes suit
gaps that repeat. Shapes: E entries, G gaps of the sample.
"""

from collections.abc import Iterator, Sequence
from math import log2

import numpy as np

from dcr.codec.engines import Engine, Indices
from dcr.codec.frames import byte_bits, smallest_size
from dcr.codec.kinds import (
    BLOCK,
    BLOCKS,
    ESCAPED,
    MAX_LOW_BITS,
    PLANES,
    RICE,
    RUN,
    STRIDED,
    STRIPS,
    Kind,
    is_blocks,
    is_rice,
)
from dcr.codec.location_parts import Plan, least_low_bits, location_parts
from dcr.codec.locations import ESCAPE
from dcr.codec.strips import find_strip, numbers_in

_SLICES, _SLICE = 4, 1024
_TRIED_SLICE = 4096
_LOOKED_AT_FROM = 64
"""Entries from which anything but Rice codes is considered."""
_TRIED_FROM = 1024
"""Entries from which types are tried: shorter items share byte frequencies with others."""
_TOO_REGULAR_BYTES = 256
"""A sample this small says nothing about the rest; an item so regular is quick to try whole."""
_FAR = 24
"""Unary bits of a first gap from which a start offset is cheaper: it costs about three bytes in the table."""
_PARAMETER = 64
"""Bits of the number of blocks."""


def plan_item(locations: Indices, shape: Sequence[int], engine: Engine, level: int) -> Plan:
    """Choose for ``locations`` [E] of a tensor of ``shape``: in strips where all lie in some of its columns.

    A trainer that splits columns over ranks sends such items. Their gaps are geometric within the strip,
    and nothing that is easily told outside of it.
    """
    columns = int(shape[-1]) if len(shape) > 1 else 1
    if len(locations) >= _TRIED_FROM and columns > 1:
        strip = find_strip(locations, columns, _slices(locations, _SLICE))
        if strip is not None:
            low_bits = _even_low_bits(numbers_in(strip, locations))
            if low_bits is not None:
                return Plan(STRIPS + low_bits, strip.base, (strip.width, strip.period))
    return plan_locations(locations, engine, level)


def plan_locations(locations: Indices, engine: Engine, level: int) -> Plan:
    """Choose for ``locations`` [E], strictly increasing from 0 or more."""
    if not len(locations):
        return Plan(RUN, 0)
    first, last = int(locations[0]), int(locations[-1])
    if last - first == len(locations) - 1:
        return Plan(RUN, first)
    strided = _strided(locations)
    if strided is not None:
        return Plan(STRIDED, first, strided)
    mean = (last - first + 1 - len(locations)) // (len(locations) - 1)
    location_type = _choose(locations, engine, level)
    return Plan(location_type, _base(first, location_type, mean))


def _even_low_bits(numbers: Indices) -> int | None:
    """Low bits for ``numbers`` [E > 1] if they are evenly spread."""
    gaps = _sampled_gaps(numbers)
    mean = float(gaps.mean())
    skipped = int(numbers[-1]) - int(numbers[0]) + 1 - len(numbers)
    low_bits, bits = best_low_bits(gaps, mean, least_low_bits(skipped, len(numbers) - 1))
    return low_bits if _are_geometric(gaps, mean) and not _repeat(gaps, mean, bits) else None


def _sampled_gaps(locations: Indices) -> Indices:
    return np.concatenate([part[1:] - part[:-1] for part in _slices(locations, _SLICE)]) - 1


def _choose(locations: Indices, engine: Engine, level: int) -> int:
    gaps = _sampled_gaps(locations)
    mean = float(gaps.mean())
    skipped = int(locations[-1]) - int(locations[0]) + 1 - len(locations)
    low_bits, bits = best_low_bits(gaps, mean, least_low_bits(skipped, len(locations) - 1))
    if len(locations) < _LOOKED_AT_FROM or (_are_geometric(gaps, mean) and not _repeat(gaps, mean, bits)):
        return RICE + low_bits
    if len(locations) < _TRIED_FROM:
        block_bits, kind = _blocks(locations)
        return kind if block_bits < bits * len(gaps) else RICE + low_bits
    return _tried(locations, RICE + low_bits, engine, level)


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
    if int(locations[1]) - int(locations[0]) > 1:  # nearly always
        return 1
    length = 16
    while True:
        breaks = np.flatnonzero(np.diff(locations[: length + 1]) != 1)
        if len(breaks):
            return int(breaks[0]) + 1
        length *= 8


def _slices(locations: Indices, size: int) -> list[Indices]:
    """All of a short item, else slices of ``size`` spread over it."""
    if len(locations) <= _SLICES * size:
        return [locations]
    step = (len(locations) - size - 1) // (_SLICES - 1)
    return [locations[at * step : at * step + size + 1] for at in range(_SLICES)]


def best_low_bits(gaps: Indices, mean: float, least: int = 0) -> tuple[int, float]:
    """Low bits k, at least ``least``, for ``gaps`` [G > 0] of that ``mean``, and the bits a gap they take."""
    guess = max(0, int(log2(mean * 0.69))) if mean > 1.5 else 0
    tried = range(max(least, guess - 1), max(least, min(guess + 1, MAX_LOW_BITS)) + 1)
    bits, low_bits = min((_rice_bits(gaps, k), k) for k in tried)
    return low_bits, bits


def _rice_bits(gaps: Indices, low_bits: int) -> float:
    """Low bits are stored as they are; unary ones are compressed by their bytes' frequencies."""
    unary = 1 + float((gaps >> low_bits).sum()) / len(gaps)
    share = 1 / unary
    entropy = -unary * (share * log2(share) + (1 - share) * log2(1 - share)) if unary > 1 else 0.0
    return low_bits + min(unary, max(1.03 * entropy, unary / 64))


def _are_geometric(gaps: Indices, mean: float) -> bool:
    """Whether as many of ``gaps`` [G] reach some sizes as of evenly spread changes, but for chance."""
    for part in (0.25, 1.0, 2.5):
        size = int(mean * part) + 1
        expected = (mean / (mean + 1)) ** size
        seen = int(np.count_nonzero(gaps >= size)) / len(gaps)
        if abs(seen - expected) > 0.008 + 2.5 * (expected * (1 - expected) / len(gaps)) ** 0.5:
            return False
    return True


def _repeat(gaps: Indices, mean: float, bits: float) -> bool:
    """Whether few values make up the ``gaps`` [G], so that their bytes take fewer than ``bits`` each."""
    if len(gaps) < _TRIED_FROM // 2 or mean > ESCAPE:
        return False
    counts = np.bincount(np.minimum(gaps, ESCAPE), minlength=ESCAPE + 1)
    return byte_bits(counts) + 8 * int(counts[ESCAPE]) < 0.9 * bits * len(gaps)


def _blocks(locations: Indices) -> tuple[float, int]:
    """Bits and type id of all ``locations`` as blocks, with masks as they are."""
    blocks = locations[np.flatnonzero(np.diff(locations // BLOCK, prepend=np.int64(-1)))] // BLOCK
    gaps = np.diff(blocks) - 1
    low_bits, bits = best_low_bits(gaps, float(gaps.mean())) if len(gaps) else (0, 1.0)
    return _PARAMETER + (bits + BLOCK) * len(blocks), BLOCKS + low_bits


def _tried(locations: Indices, rice: int, engine: Engine, level: int) -> int:
    """Encode and compress a sample in every type that may do."""
    part = _joined(_slices(locations, _TRIED_SLICE))
    sizes = {kind: _size(part, Plan(kind, 0), engine, level) for kind in {rice, *_candidates(part)}}
    if min(sizes.values()) < _TOO_REGULAR_BYTES:
        part = _joined([locations])  # from near 0, or the first gap alone might have rivers of unary bits
        sizes = {kind: _size(part, Plan(kind, 0), engine, level) for kind in {rice, *_candidates(part)}}
    ranked = sorted(sizes, key=lambda kind: (sizes[kind], kind))
    return next(kind for kind in ranked if _fits(kind, locations))


def _joined(slices: list[Indices]) -> Indices:
    """Slices one after another, each at the same place of a block as before."""
    parts, following = [], 0
    for part in slices:
        moved = part + (following - int(part[0]) // BLOCK * BLOCK)
        parts.append(moved)
        following = (int(moved[-1]) // BLOCK + 1) * BLOCK
    return np.concatenate(parts)


def _candidates(locations: Indices) -> Iterator[int]:
    """Types worth a try, but for Rice codes."""
    gaps = np.diff(locations) - 1
    wide = next((kind for kind, width in PLANES.items() if int(gaps.max()) < 1 << (8 * width)), None)
    if wide is not None:
        yield wide
    if int((gaps // ESCAPE).sum()) < 3 * len(gaps):
        yield ESCAPED
    for kind in (RICE + best_low_bits(gaps, float(gaps.mean()))[0], _blocks(locations)[1]):
        first = RICE if is_rice(kind) else BLOCKS
        yield from range(max(first, kind - 1), min(first + MAX_LOW_BITS, kind + 1) + 1)


def _size(locations: Indices, plan: Plan, engine: Engine, level: int) -> int:
    return sum(
        len(raw) if kind == Kind.PARAMETERS else smallest_size(raw, level)
        for kind, raw in location_parts(locations, plan, engine)[1]
        if len(raw)
    )


def _fits(location_type: int, locations: Indices) -> bool:
    """Whether all gaps suit the type, not only those of the sample."""
    skipped = int(locations[-1]) - int(locations[0]) + 1 - len(locations)
    if is_rice(location_type):
        return location_type - RICE >= least_low_bits(skipped, len(locations) - 1)
    if location_type == ESCAPED:
        return skipped < 4 * ESCAPE * len(locations)
    return location_type not in PLANES or int(np.diff(locations).max()) <= 1 << (8 * PLANES[location_type])
