"""Rows of the item table and raw sections to items; every byte of every section belongs to one item."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.codec.engines import Bytes, Engine, Indices
from dcr.codec.item import NARROW_ELEMENTS, Item, Positions
from dcr.codec.kinds import (
    BLOCK,
    BLOCKS,
    ESCAPED,
    EXCESS_PLANES,
    GAP_DTYPES,
    GAP_PLANES,
    PLANES,
    RICE,
    RUN,
    SMALL,
    STRIDED,
    STRIPS,
    VALUE_PLANES,
    Kind,
    Layout,
    is_blocks,
    is_rice,
    is_strips,
    kind_name,
)
from dcr.codec.locations import ESCAPE, decode_escaped, decode_gaps, decode_run, decode_strided
from dcr.codec.strips import Strip, locations_of, room_in
from dcr.codec.table import Row
from dcr.errors import PayloadError
from dcr.model import Bits, Encoding, bits_dtype

Sections: TypeAlias = Mapping[int, bytes]

_DEPEND_ON_CONTENT = frozenset(
    [Kind.UNARY, Kind.LOW_BITS, Kind.MASKS, Kind.ESCAPED_GAPS, *EXCESS_PLANES, Kind.ITEM_TABLE]
)
"""Sections that the rows only bound."""


def section_bounds(rows: Sequence[Row]) -> Counter[int]:
    """Most bytes that each section but the item table can have if its items are honest."""
    most: Counter[int] = Counter({Kind.LOCATIONS: 0, Kind.VALUES: 0})
    for row in rows:
        most[Kind.VALUES] += row.values_bytes
        most[Kind.LOCATIONS] += row.locations_bytes
        most.update(_value_bounds(row))
        most.update(_location_bounds(row))
    return most


def check_exact(bounds: Mapping[int, int], claims: Mapping[int, int]) -> None:
    """Sections whose size follows from the rows must have it, before anything of that size is allocated.

    Else a run of many entries whose values are missing would cost bytes for each.

    Raises:
        PayloadError: names one that has another size.
    """
    for kind, size in bounds.items():
        claim = claims.get(kind, 0)
        if kind not in _DEPEND_ON_CONTENT and claim != size:
            raise PayloadError(f"items use {size} bytes of {kind_name(kind)}, which holds {claim}")


def _value_bounds(row: Row) -> dict[int, int]:
    if row.layout is Layout.PLANES:
        return dict.fromkeys(VALUE_PLANES[row.encoding, row.width], row.entries)
    if row.layout is Layout.PAIRS:
        return {Kind.DELTA16_PAIRS: (row.entries + 1) // 2, **dict.fromkeys(EXCESS_PLANES, row.entries)}
    return {}


def _location_bounds(row: Row) -> dict[int, int]:
    kind, entries = row.location_type, row.entries
    if is_rice(kind):
        return {Kind.UNARY: entries + 8, Kind.LOW_BITS: -(-entries * (kind - RICE) // 8)}
    if is_blocks(kind):
        low = -(-entries * (kind - BLOCKS) // 8)
        return {Kind.PARAMETERS: 8, Kind.UNARY: entries + 8, Kind.LOW_BITS: low, Kind.MASKS: 8 * entries}
    if is_strips(kind):
        low = -(-entries * (kind - STRIPS) // 8)
        return {Kind.PARAMETERS: 16, Kind.UNARY: entries + 8, Kind.LOW_BITS: low}
    if kind == STRIDED:
        return {Kind.PARAMETERS: 16}
    if kind == ESCAPED:
        return {Kind.ESCAPED_GAPS: 8 * entries}
    return dict.fromkeys(GAP_PLANES[PLANES[kind]], entries) if kind in PLANES else {}


def read_items(rows: Sequence[Row], sections: Sections, engine: Engine) -> tuple[Item, ...]:
    """All items; their arrays are new, aligned and writable.

    Raises:
        PayloadError: locations outside a tensor or twice, sections that are not used up exactly.
    """
    unpacker = Unpacker(sections, engine, sum(row.entries for row in rows))
    items = tuple(unpacker.item(row) for row in rows)
    unpacker.finish()
    check_claims(items)
    return items


class Unpacker:
    """Takes items from the front of each section, in the order of the rows."""

    def __init__(self, sections: Sections, engine: Engine, num_entries: int) -> None:
        self._engine = engine
        self._sections = {kind: np.frombuffer(raw, np.uint8) for kind, raw in sections.items()}
        self._used: dict[int, int] = defaultdict(int)
        unary, low = (sections.get(kind, b"") for kind in (Kind.UNARY, Kind.LOW_BITS))
        self._rice = engine.reader(unary, low, num_entries)

    def used(self) -> dict[int, int]:
        """Bytes taken from each section so far."""
        unary, low = self._rice.position
        return {**self._used, Kind.UNARY: unary, Kind.LOW_BITS: low}

    def item(self, row: Row) -> Item:
        """The next item.

        Raises:
            PayloadError: as ``read_items``.
        """
        positions = _narrowed(self._locations(row), row.num_elements)
        return Item(
            row.name, row.shape, row.dtype, row.encoding, positions, self._values(row), row.target_digest
        )

    def finish(self) -> None:
        """Every section must be used up.

        Raises:
            PayloadError: names one that is not.
        """
        self._rice.finish()
        used = self.used()
        for kind, raw in self._sections.items():
            if kind != Kind.ITEM_TABLE and used.get(kind, 0) != len(raw):
                raise PayloadError(
                    f"items use {used.get(kind, 0)} bytes of {kind_name(kind)}, which holds {len(raw)}"
                )

    def _take(self, kind: int, num_bytes: int) -> Bytes:
        section = self._sections.get(kind, np.empty(0, np.uint8))
        start = self._used[kind]
        if start + num_bytes > len(section):
            raise PayloadError(
                f"items use {start + num_bytes} bytes of {kind_name(kind)}, which holds {len(section)}"
            )
        self._used[kind] += num_bytes
        return section[start : start + num_bytes]

    def _values(self, row: Row) -> Bits:
        if row.layout is Layout.PAIRS:
            return self._pairs(row)
        if row.layout is Layout.WORDS:
            values: Bits = self._take(Kind.VALUES, row.values_bytes).view(bits_dtype(row.dtype))
            return _owned(values)
        kinds = VALUE_PLANES[row.encoding, row.width]
        planes = tuple(self._take(kind, row.entries) for kind in kinds)
        return self._engine.join(planes, row.encoding is Encoding.DELTA16)

    def _pairs(self, row: Row) -> Bits:
        pairs = self._take(Kind.DELTA16_PAIRS, (row.entries + 1) // 2)
        if row.entries % 2 and pairs[-1] > SMALL:
            raise PayloadError(f"item {row.name!r}: bits are set after its last value")
        count = int(_LARGE[pairs].sum(dtype=np.int64))
        excess = self._engine.join(tuple(self._take(kind, count) for kind in EXCESS_PLANES), zigzag=False)
        if count and int(excess.max()) > _MAX_EXCESS:
            raise PayloadError(f"item {row.name!r}: a difference exceeds 16 bits")
        return self._engine.unpair(pairs, excess, row.entries)

    def _locations(self, row: Row) -> Indices:
        kind, start = row.location_type, row.locations_at
        if kind == RUN:
            return decode_run(start, row.entries, row.num_elements)
        if kind in GAP_DTYPES:
            gaps = self._take(Kind.LOCATIONS, row.locations_bytes).view(GAP_DTYPES[kind])
            return decode_gaps(gaps, row.num_elements)
        if kind == STRIDED:
            block, period = self._parameters(2)
            return decode_strided(start, row.entries, row.num_elements, block, period)
        if is_blocks(kind):
            return self._blocks(row)
        if is_strips(kind):
            strip = Strip(start, *self._parameters(2))
            room = room_in(strip, row.num_elements)
            return locations_of(strip, self._rice.take(row.entries, kind - STRIPS, room))
        room = row.num_elements - start
        if is_rice(kind):
            relative = self._rice.take(row.entries, kind - RICE, room)
        elif kind == ESCAPED:
            relative = decode_escaped(self._take_escaped(row.entries), room)
        else:
            relative = decode_gaps(self._gaps(PLANES[kind], row.entries), room)
        relative += start
        return relative

    def _parameters(self, count: int) -> list[int]:
        numbers: list[int] = self._take(Kind.PARAMETERS, 8 * count).view("<u8").tolist()
        return numbers

    def _gaps(self, width: int, entries: int) -> NDArray[np.unsignedinteger[Any]]:
        planes = tuple(self._take(kind, entries) for kind in GAP_PLANES[width])
        return self._engine.join(planes, zigzag=False)

    def _take_escaped(self, entries: int) -> Bytes:
        """Bytes up to the end of the gap number ``entries``."""
        rest = self._sections.get(Kind.ESCAPED_GAPS, np.empty(0, np.uint8))[self._used[Kind.ESCAPED_GAPS] :]
        ends = np.flatnonzero(rest[: 8 * entries] < ESCAPE)
        if len(ends) < entries:
            raise PayloadError(f"escaped gaps end before the item's {entries}")
        return self._take(Kind.ESCAPED_GAPS, int(ends[entries - 1]) + 1)

    def _blocks(self, row: Row) -> Indices:
        (count,) = self._parameters(1)
        if not 0 < count <= row.entries:
            raise PayloadError(f"item {row.name!r}: {count} blocks cannot hold {row.entries} entries")
        room = row.num_elements - row.locations_at
        blocks = self._rice.take(count, row.location_type - BLOCKS, -(-room // BLOCK))
        masks = _owned(self._take(Kind.MASKS, 8 * count).view("<u8"))
        if not masks.all() or count_bits(masks) != row.entries:
            raise PayloadError(f"item {row.name!r}: masks do not hold {row.entries} entries, some in each")
        last = BLOCK * int(blocks[-1]) + int(masks[-1]).bit_length()
        if last > room:
            raise PayloadError(f"item {row.name!r}: masks lead beyond the {row.num_elements} elements")
        return self._engine.unmask(blocks, masks, row.locations_at, row.entries)


def count_bits(masks: NDArray[np.uint64]) -> int:
    """Bits set in all of ``masks`` [B]."""
    ones = _ONES[masks.view(np.uint8)]
    return int(ones.sum(dtype=np.int64))


_MAX_EXCESS = (1 << 16) - 1 - SMALL
_LARGE = np.array([(byte & 15 == SMALL) + (byte >> 4 == SMALL) for byte in range(256)], np.uint8)
"""Byte of two half bytes -> how many of them have an excess."""
_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)


def _narrowed(locations: Indices, num_elements: int) -> Positions:
    return locations.astype(np.int32) if num_elements <= NARROW_ELEMENTS else locations


def _owned(array: NDArray[Any]) -> NDArray[Any]:
    """A new array that the caller owns."""
    return array.copy()


def check_claims(items: Sequence[Item]) -> None:
    """Items that share a name must describe one tensor and never the same element of it.

    Raises:
        PayloadError: they do not.
    """
    by_name: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_name[item.name].append(item)
    for name, group in by_name.items():
        if len(group) == 1:
            continue
        if len({(tuple(item.shape), item.dtype) for item in group}) > 1:
            raise PayloadError(f"items of {name!r} disagree about its shape or dtype")
        merged = np.sort(np.concatenate([item.positions for item in group]))
        if bool((merged[1:] == merged[:-1]).any()):
            raise PayloadError(f"two items of {name!r} hold the same element")
