"""Locations of one item to parts of sections, as a plan says. Shapes: E entries."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from dcr.codec.engines import Bytes, Engine, Indices
from dcr.codec.frames import Raw
from dcr.codec.kinds import (
    BLOCKS,
    ESCAPED,
    GAP_PLANES,
    PLANES,
    RICE,
    STRIPS,
    Kind,
    is_blocks,
    is_rice,
    is_strips,
)
from dcr.codec.locations import encode_escaped, gaps_of
from dcr.codec.strips import Strip, numbers_in

Parts: TypeAlias = list[tuple[int, Raw]]
"""Section kinds, and what an item adds to each."""

_MAX_HIGH = 6
"""Most unary bits a gap on average, which keeps their section below a byte an entry."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Location type id, the element that it counts from, and the numbers that it needs besides."""

    location_type: int
    base: int
    parameters: tuple[int, ...] = ()


def least_low_bits(skipped: int, num_gaps: int) -> int:
    """Low bits from which ``num_gaps`` that skip as many elements have at most 6 unary bits on average.

    One far gap that no sample shows would else become a river of them.
    """
    return (skipped // (_MAX_HIGH * num_gaps)).bit_length()


def location_parts(locations: Indices, plan: Plan, engine: Engine) -> tuple[Plan, Parts]:
    """Parts of ``locations`` [E], strictly increasing, and the plan, made exact where it was an estimate."""
    kind = plan.location_type
    if is_blocks(kind):
        return _block_parts(locations, plan, engine)
    parts: Parts = [(Kind.PARAMETERS, _numbers(*plan.parameters))] if plan.parameters else []
    if is_rice(kind):
        parts += _rice_parts(locations, plan.base, kind - RICE, engine)
    elif is_strips(kind):
        numbers = numbers_in(Strip(plan.base, *plan.parameters), locations)
        parts += _rice_parts(numbers, 0, kind - STRIPS, engine)
    elif kind == ESCAPED:
        parts.append((Kind.ESCAPED_GAPS, encode_escaped(gaps_of(locations, plan.base)).data))
    elif kind in PLANES:
        gaps = gaps_of(locations, plan.base)
        for byte, section in enumerate(GAP_PLANES[PLANES[kind]]):
            plane: Bytes = (gaps >> (8 * byte)).astype(np.uint8)
            parts.append((section, plane.data))
    return plan, parts


def _block_parts(locations: Indices, plan: Plan, engine: Engine) -> tuple[Plan, Parts]:
    blocks, masks = engine.mask(np.ascontiguousarray(locations), plan.base)
    least = least_low_bits(int(blocks[-1]) + 1 - len(blocks), len(blocks))
    exact = replace(plan, location_type=max(plan.location_type, BLOCKS + least))
    raw: Bytes = masks.astype("<u8", copy=False).view(np.uint8)
    rice = _rice_parts(blocks, 0, exact.location_type - BLOCKS, engine)
    return exact, [(Kind.PARAMETERS, _numbers(len(blocks))), *rice, (Kind.MASKS, raw.data)]


def _rice_parts(numbers: Indices, base: int, low_bits: int, engine: Engine) -> Iterator[tuple[int, Raw]]:
    unary, low = engine.rice(np.ascontiguousarray(numbers), base, low_bits)
    yield Kind.UNARY, unary
    yield Kind.LOW_BITS, low


def _numbers(*numbers: int) -> bytes:
    return np.array(numbers, "<u8").tobytes()
