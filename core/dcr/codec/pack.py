"""Items to rows of the item table and raw sections. Shapes: E entries."""

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from dcr.codec.engines import Bytes, Engine, Indices
from dcr.codec.frames import Raw
from dcr.codec.item import Item
from dcr.codec.kinds import EXCESS_PLANES, RUN, VALUE_PLANES, Kind, Layout
from dcr.codec.layouts import choose_layouts
from dcr.codec.location_parts import Plan, location_parts
from dcr.codec.locations import encode_locations
from dcr.codec.plan import plan_item
from dcr.codec.table import Row, write_table
from dcr.model import Encoding

Sections: TypeAlias = list[tuple[int, Raw]]
"""Section kinds and what they hold, in the order of the format."""


def pack_published(items: Sequence[Item]) -> tuple[list[Row], Sections]:
    """The published coding: gaps in the smallest integer, values as they are."""
    rows, locations, values = [], [], []
    values_at = locations_at = 0
    for item in items:
        location_type, start, coded = encode_locations(item.locations)
        base = start if location_type == RUN else locations_at
        row = _row(item, Plan(location_type, base), Layout.WORDS, values_at)
        rows.append(row)
        locations.append(coded)
        values.append(item.values.tobytes())
        values_at += row.values_bytes
        locations_at += row.locations_bytes
    parts = (write_table(rows), b"".join(locations), b"".join(values))
    return rows, list(zip((Kind.ITEM_TABLE, Kind.LOCATIONS, Kind.VALUES), parts, strict=True))


def pack_planes(items: Sequence[Item], engine: Engine, level: int) -> tuple[list[Row], Sections]:
    """For each item the location type and the layout of values with the fewest bytes."""
    writer = SectionWriter(engine)
    plans = [
        writer.add_locations(item.locations, plan_item(item.locations, item.shape, engine, level))
        for item in items
    ]
    layouts = choose_layouts(items, [plan.location_type for plan in plans], engine, level)
    rows = [
        _row(item, plan, layout, writer.add_values(item, layout))
        for item, plan, layout in zip(items, plans, layouts, strict=True)
    ]
    return rows, writer.sections(rows)


def _row(item: Item, plan: Plan, layout: Layout, values_at: int) -> Row:
    return Row(
        item.name, tuple(item.shape), item.dtype, item.encoding, item.num_entries, values_at,
        plan.location_type, plan.base, item.target_digest, layout,
    )  # fmt: skip


class SectionWriter:
    """Collects what each section holds, item by item."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parts: dict[int, list[Raw]] = defaultdict(list)
        self._in_planes: dict[tuple[Encoding, int], list[Item]] = defaultdict(list)
        self._values_at = 0

    def add_locations(self, locations: Indices, plan: Plan) -> Plan:
        """Write ``locations`` [E] as ``plan`` says; returns the plan, made exact where it was an estimate."""
        exact, parts = location_parts(locations, plan, self._engine)
        for kind, part in parts:
            self._parts[kind].append(part)
        return exact

    def add_values(self, item: Item, layout: Layout) -> int:
        """Take the values; returns their offset in the section of words, 0 in another layout."""
        if layout is Layout.WORDS:
            self._parts[Kind.VALUES].append(item.values.tobytes())
            self._values_at += item.values.nbytes
            return self._values_at - item.values.nbytes
        if layout is Layout.PLANES and item.num_entries:
            self._in_planes[item.encoding, item.values.dtype.itemsize].append(item)
        if layout is Layout.PAIRS:
            pairs, excess = self._engine.pair(np.ascontiguousarray(item.values))
            self._add(Kind.DELTA16_PAIRS, pairs)
            for kind, plane in zip(EXCESS_PLANES, (excess & 255, excess >> 8), strict=True):
                self._add(kind, plane.astype(np.uint8))
        return 0

    def sections(self, rows: Sequence[Row]) -> Sections:
        """All sections in the order of the format; optional ones only if they hold anything."""
        raw: dict[int, Raw] = {Kind.ITEM_TABLE: write_table(rows), Kind.LOCATIONS: b"", Kind.VALUES: b""}
        raw |= {kind: b"".join(parts) for kind, parts in self._parts.items()}
        for (encoding, width), group in self._in_planes.items():
            kinds, planes = VALUE_PLANES[encoding, width], self._split(group, encoding, width)
            raw |= {kind: plane.data for kind, plane in zip(kinds, planes, strict=True)}
        return [(kind, raw[kind]) for kind in sorted(raw) if kind <= Kind.VALUES or len(raw[kind])]

    def _split(self, group: Sequence[Item], encoding: Encoding, width: int) -> Bytes:
        """Planes [width, E of all] of the values of ``group``."""
        planes = np.empty((width, sum(item.num_entries for item in group)), np.uint8)
        at = 0
        for item in group:
            self._engine.split(np.ascontiguousarray(item.values), planes, at, encoding is Encoding.DELTA16)
            at += item.num_entries
        return planes

    def _add(self, kind: Kind, part: Bytes) -> None:
        self._parts[kind].append(part.data)
