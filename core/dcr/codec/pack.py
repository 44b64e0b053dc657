"""Items to rows of the item table and raw sections. Shapes: E entries."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from dcr.codec.engines import Engine
from dcr.codec.frames import Raw, sample, smallest_size
from dcr.codec.item import Item
from dcr.codec.kinds import (
    BLOCKS,
    ESCAPED,
    GAP_PLANES,
    PLANES,
    RICE,
    RUN,
    STRIDED,
    VALUE_PLANES,
    Kind,
    is_blocks,
    is_rice,
)
from dcr.codec.locations import encode_escaped, encode_locations, gaps_of
from dcr.codec.plan import Plan, least_low_bits, plan_locations
from dcr.codec.table import Row, write_table
from dcr.model import Encoding

Sections: TypeAlias = list[tuple[int, Raw]]

WHOLE_BYTES = 1 << 12
"""Values of one run from this size on are compared: planes, or words that repeat."""
_PLANES_COST = 0.995
"""Words must be this much smaller than planes on the sample."""


def pack_published(items: Sequence[Item]) -> tuple[list[Row], Sections]:
    """The published coding: gaps in the smallest integer, values as they are."""
    rows, locations, values = [], [], []
    values_at = locations_at = 0
    for item in items:
        location_type, start, coded = encode_locations(item.locations)
        base = start if location_type == RUN else locations_at
        row = _row(item, Plan(location_type, base), values_at, in_planes=False)
        rows.append(row)
        locations.append(coded)
        values.append(item.values.tobytes())
        values_at += row.values_bytes
        locations_at += row.locations_bytes
    parts = (write_table(rows), b"".join(locations), b"".join(values))
    return rows, list(zip((Kind.ITEM_TABLE, Kind.LOCATIONS, Kind.VALUES), parts, strict=True))


def pack_planes(items: Sequence[Item], engine: Engine, level: int) -> tuple[list[Row], Sections]:
    """Byte planes, and for each item the location type with the fewest bits."""
    packer = _Packer(engine, level)
    rows = [packer.add(item) for item in items]
    packer.add_planes([item for item, row in zip(items, rows, strict=True) if row.in_planes])
    return rows, packer.sections(rows)


def _row(item: Item, plan: Plan, values_at: int, *, in_planes: bool) -> Row:
    return Row(
        item.name, tuple(item.shape), item.dtype, item.encoding, item.num_entries, values_at,
        plan.location_type, plan.base, item.target_digest, in_planes,
    )  # fmt: skip


class _Packer:
    """Collects the parts of each section."""

    def __init__(self, engine: Engine, level: int) -> None:
        self._engine, self._level = engine, level
        self._parts: dict[int, list[Raw]] = defaultdict(list)
        self._planes: dict[int, Raw] = {}
        self._values_at = 0

    def add(self, item: Item) -> Row:
        """Code the locations, and the values unless planes suit them."""
        plan = self._add_locations(item, plan_locations(item.locations))
        in_planes = not self._repeats(item, plan)
        row = _row(item, plan, 0 if in_planes else self._values_at, in_planes=in_planes)
        if not in_planes:
            self._parts[Kind.VALUES].append(item.values.tobytes())
            self._values_at += row.values_bytes
        return row

    def _repeats(self, item: Item, plan: Plan) -> bool:
        """Whether neighbouring values repeat so well that their words compress better than their bytes."""
        values = item.values
        if (
            values.dtype.itemsize == 1
            or plan.location_type not in (RUN, STRIDED)
            or values.nbytes < WHOLE_BYTES
        ):
            return False
        words = np.frombuffer(sample(np.ascontiguousarray(values).view(np.uint8).data), values.dtype)
        planes = np.empty((values.dtype.itemsize, len(words)), np.uint8)
        self._engine.split(words, planes, 0, item.encoding is Encoding.DELTA16)
        in_planes = sum(smallest_size(plane.data, self._level) for plane in planes)
        return smallest_size(words.view(np.uint8).data, self._level) < _PLANES_COST * in_planes

    def _add_locations(self, item: Item, plan: Plan) -> Plan:
        kind, locations = plan.location_type, item.locations
        if plan.parameters:
            self._parts[Kind.PARAMETERS].append(np.array(plan.parameters, "<u8").tobytes())
        if is_rice(kind):
            self._add_rice(*self._engine.rice(locations, plan.base, kind - RICE))
        elif is_blocks(kind):
            blocks, masks = self._engine.mask(locations, plan.base)
            least = least_low_bits(int(blocks[-1]) + 1 - len(blocks), len(blocks))
            plan = replace(plan, location_type=max(kind, BLOCKS + least))
            self._add_rice(*self._engine.rice(blocks, 0, plan.location_type - BLOCKS))
            self._parts[Kind.PARAMETERS].append(np.array([len(blocks)], "<u8").tobytes())
            self._parts[Kind.MASKS].append(masks.astype("<u8", copy=False).view(np.uint8).data)
        elif kind == ESCAPED:
            self._parts[Kind.ESCAPED_GAPS].append(encode_escaped(gaps_of(locations, plan.base)).data)
        elif kind in PLANES:
            gaps = gaps_of(locations, plan.base)
            for byte, section in enumerate(GAP_PLANES[PLANES[kind]]):
                self._parts[section].append((gaps >> (8 * byte)).astype(np.uint8).data)
        return plan

    def _add_rice(self, unary: Raw, low: Raw) -> None:
        self._parts[Kind.UNARY].append(unary)
        self._parts[Kind.LOW_BITS].append(low)

    def add_planes(self, items: Sequence[Item]) -> None:
        """Split the values of ``items``, which lie one after another in their planes."""
        groups: dict[tuple[Encoding, int], list[Item]] = defaultdict(list)
        for item in items:
            if item.num_entries:
                groups[item.encoding, item.values.dtype.itemsize].append(item)
        for (encoding, width), group in groups.items():
            planes = np.empty((width, sum(item.num_entries for item in group)), np.uint8)
            at = 0
            for item in group:
                values = np.ascontiguousarray(item.values)
                self._engine.split(values, planes, at, encoding is Encoding.DELTA16)
                at += item.num_entries
            for kind, plane in zip(VALUE_PLANES[encoding, width], planes, strict=True):
                self._planes[kind] = plane.data

    def sections(self, rows: Sequence[Row]) -> Sections:
        """All sections in the order of the format; optional ones only if they hold anything."""
        raw: dict[int, Raw] = {Kind.ITEM_TABLE: write_table(rows), Kind.LOCATIONS: b"", Kind.VALUES: b""}
        raw |= {kind: b"".join(parts) for kind, parts in self._parts.items()}
        raw |= self._planes
        return [(kind, raw[kind]) for kind in sorted(raw) if kind <= Kind.VALUES or len(raw[kind])]
