"""Ids of format v1 beyond the head: section kinds and location types; only append (docs/format.md)."""

from enum import IntEnum
from typing import Any

import numpy as np

from dcr.model import Encoding


class Kind(IntEnum):
    """Section ids, but for those of value planes (``plane_kind``). The first three are always present."""

    ITEM_TABLE = 1
    LOCATIONS = 2
    VALUES = 3
    PARAMETERS = 4
    UNARY = 5
    LOW_BITS = 6
    MASKS = 7
    ESCAPED_GAPS = 8
    GAPS16_BYTE0 = 16
    GAPS16_BYTE1 = 17
    GAPS32_BYTE0 = 20
    GAPS32_BYTE1 = 21
    GAPS32_BYTE2 = 22
    GAPS32_BYTE3 = 23
    DELTA16_PAIRS = 0x301
    DELTA16_EXCESS_BYTE0 = 0x302
    DELTA16_EXCESS_BYTE1 = 0x303


MANDATORY = (Kind.ITEM_TABLE, Kind.LOCATIONS, Kind.VALUES)
GAP_PLANES = {
    2: (Kind.GAPS16_BYTE0, Kind.GAPS16_BYTE1),
    4: (Kind.GAPS32_BYTE0, Kind.GAPS32_BYTE1, Kind.GAPS32_BYTE2, Kind.GAPS32_BYTE3),
}
"""Width of gaps in bytes -> the sections that hold their bytes, least significant first."""

ENCODING_IDS = {Encoding.XOR: 1, Encoding.OVERWRITE: 2, Encoding.DELTA16: 3}
"""Wire ids of the encodings."""


FIRST_PLANE = 256
"""Section ids from here on are planes of values."""


def plane_kind(encoding: Encoding, width: int, byte: int) -> int:
    """Section of byte ``byte`` (0 is the least significant) of values of ``width`` bytes."""
    return 256 * ENCODING_IDS[encoding] + 16 * width + byte


VALUE_PLANES = {
    (encoding, width): tuple(plane_kind(encoding, width, byte) for byte in range(width))
    for encoding in Encoding
    for width in (1, 2, 4, 8)
    if encoding is not Encoding.DELTA16 or width == 2
}
"""(Encoding, width in bytes) -> its plane sections, least significant byte first."""

_PLANE_NAMES = {
    kind: f"{encoding.value.upper()}_{8 * width}_BYTE{byte}"
    for (encoding, width), kinds in VALUE_PLANES.items()
    for byte, kind in enumerate(kinds)
}
SECTION_KINDS = frozenset([*Kind, *_PLANE_NAMES])
"""Every section id of format v1."""


def kind_name(kind: int) -> str:
    """Name of a known section kind, for messages."""
    return _PLANE_NAMES[kind] if kind in _PLANE_NAMES else Kind(kind).name


EXCESS_PLANES = (Kind.DELTA16_EXCESS_BYTE0, Kind.DELTA16_EXCESS_BYTE1)


class Layout(IntEnum):
    """How values are laid out: words one after another, planes of their bytes, or small ones in pairs."""

    WORDS = 0
    PLANES = 1
    PAIRS = 2


SMALL = 15
"""Differences, zigzagged, below this take half a byte; the excess over it of others is a word."""

RUN = 0
GAP_DTYPES: dict[int, np.dtype[np.unsignedinteger[Any]]] = {
    1: np.dtype("<u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<u4"),
    8: np.dtype("<u8"),
}
"""Location type id (also the width in bytes) of gap-coded locations of the published coding."""
STRIDED = 16
ESCAPED = 17
PLANES = {18: 2, 20: 4}
"""Location type id -> width in bytes of gaps in planes."""
RICE = 64
BLOCKS = 128
STRIPS = 192
MAX_LOW_BITS = 62
BLOCK = 64
"""Elements of a block: one bit of a mask each."""
LOCATION_TYPES = (
    RUN,
    *GAP_DTYPES,
    STRIDED,
    ESCAPED,
    *PLANES,
    *range(RICE, RICE + MAX_LOW_BITS + 1),
    *range(BLOCKS, BLOCKS + MAX_LOW_BITS + 1),
    *range(STRIPS, STRIPS + MAX_LOW_BITS + 1),
)
"""RICE, BLOCKS and STRIPS + k: the k low bits of each gap are stored as they are, its rest in unary."""


def is_rice(location_type: int) -> bool:
    """Whether gaps are coded after Rice."""
    return RICE <= location_type <= RICE + MAX_LOW_BITS


def is_blocks(location_type: int) -> bool:
    """Whether locations are blocks with masks."""
    return BLOCKS <= location_type <= BLOCKS + MAX_LOW_BITS


def is_strips(location_type: int) -> bool:
    """Whether gaps are counted within strips of a matrix and coded after Rice."""
    return STRIPS <= location_type <= STRIPS + MAX_LOW_BITS


def location_name(location_type: int) -> str:
    """What people read: run, gap8, stride, escape8, planes16, rice5, blocks3, strips4 and so on."""
    if location_type in GAP_DTYPES:
        return f"gap{8 * location_type}"
    if location_type in PLANES:
        return f"planes{8 * PLANES[location_type]}"
    if is_rice(location_type):
        return f"rice{location_type - RICE}"
    if is_blocks(location_type):
        return f"blocks{location_type - BLOCKS}"
    if is_strips(location_type):
        return f"strips{location_type - STRIPS}"
    return {RUN: "run", STRIDED: "stride", ESCAPED: "escape8"}[location_type]
