"""What a payload consists of, and how close its coding comes to what its content needs (DESIGN R7, B8).

Bounds are of order 0: nothing is assumed about neighbours. E changes among N elements need N * H(E / N)
bits for the locations, H being the binary entropy; N counts from the first to the last change, and in
the columns between the outermost if a strip of them is coded, because an owner may hold a part of the
tensor only, and how large a part a payload does not say. Values need
E times the entropy of their frequencies in the item.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec.engines import engine_of
from dcr.codec.head import HEAD_BYTES, Head
from dcr.codec.item import Item
from dcr.codec.kinds import FIRST_PLANE, Kind, is_strips, location_name
from dcr.codec.limits import Limits
from dcr.codec.payload import decode_payload, read_rows
from dcr.codec.sections import read_section_table
from dcr.codec.table import Row
from dcr.codec.unpack import Unpacker
from dcr.model import Encoding


@dataclass(frozen=True, slots=True)
class Coding:
    """Locations or values of one item, or of several. ``stored_bytes`` is after compression.

    ``raw_bytes`` is exact. A section is compressed as a whole: an item has the share of the frame that
    its bytes have of the section's bits under the section's own byte frequencies, which is what Huffman
    coding spends on them. So ``stored_bytes`` adds up exactly to the payload.
    """

    raw_bytes: int
    stored_bytes: float
    bound_bits: float


@dataclass(frozen=True, slots=True)
class ItemInspection:
    """One item. ``location_kind`` is what ``kinds.location_name`` says: run, gap8, rice5 and so on.

    ``num_changed``: entries whose difference is not zero, for a shard that is sent whole has others too; of
    absolute values it cannot be told, and all count.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    encoding: str
    num_elements: int
    num_entries: int
    num_changed: int
    location_kind: str
    locations: Coding
    values: Coding

    @property
    def changed_fraction(self) -> float:
        """Changed entries over elements of the whole tensor; 0 for a tensor without elements."""
        return self.num_changed / self.num_elements if self.num_elements else 0.0


@dataclass(frozen=True, slots=True)
class PayloadInspection:
    """One payload: its head, its items in order, and the bytes that belong to no item's buffers."""

    head: Head
    items: tuple[ItemInspection, ...]
    table: Coding
    frame_bytes: int
    """Bytes of head and section table."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole payload."""
        return HEAD_BYTES + self.head.body_bytes


def inspect_payload(data: bytes | memoryview, *, limits: Limits | None = None) -> PayloadInspection:
    """Take a payload apart.

    Raises:
        PayloadError: it is none; see ``decode_payload``.
    """
    view = memoryview(data).cast("B")
    payload = decode_payload(view, limits=limits)
    head, rows, sections = read_rows(view, limits or Limits())
    table = {row.kind: row for row in read_section_table(view[HEAD_BYTES:], head.num_sections)}
    parts = _parts(rows, sections, head.num_entries)
    stored = {kind: _attributed(raw, table[kind].frame_bytes, parts[kind]) for kind, raw in sections.items()}
    items = tuple(
        _inspect(row, item, _codings(index, parts, stored))
        for index, (row, item) in enumerate(zip(rows, payload.items, strict=True))
    )
    items_table = table[Kind.ITEM_TABLE]
    framing = HEAD_BYTES + head.body_bytes - sum(row.frame_bytes for row in table.values())
    return PayloadInspection(
        head, items, Coding(items_table.raw_bytes, items_table.frame_bytes, 0.0), framing
    )


def _parts(rows: Sequence[Row], sections: Mapping[int, bytes], num_entries: int) -> dict[int, list[int]]:
    """Bytes of every section that each row takes."""
    unpacker = Unpacker(sections, engine_of("auto", num_entries), num_entries)
    parts: dict[int, list[int]] = {kind: [] for kind in sections}
    before: Mapping[int, int] = {}
    for row in rows:
        unpacker.item(row)
        used = unpacker.used()
        for kind, column in parts.items():
            column.append(used.get(kind, 0) - before.get(kind, 0))
        before = used
    return parts


def _attributed(raw: bytes, frame_bytes: int, parts: Sequence[int]) -> list[float]:
    """Bytes of the frame that belong to each part [items] of ``raw``, which they tile."""
    symbols = np.frombuffer(raw, np.uint8)
    counts = np.bincount(symbols, minlength=256)
    lengths = np.log2(symbols.size / np.maximum(counts, 1)) if counts.max(initial=0) < symbols.size else None
    ends = np.cumsum(parts, dtype=np.int64).tolist()
    weights = [
        float(lengths[symbols[end - size : end]].sum()) if lengths is not None else float(size)
        for size, end in zip(parts, ends, strict=True)
    ]
    whole = sum(weights)
    return [frame_bytes * weight / whole if whole else 0.0 for weight in weights]


def _codings(
    index: int, parts: Mapping[int, Sequence[int]], stored: Mapping[int, Sequence[float]]
) -> tuple[Coding, Coding]:
    """Locations and values of one item, still without bounds."""
    of_values = {kind for kind in parts if kind == Kind.VALUES or kind >= FIRST_PLANE}
    return tuple(  # type: ignore[return-value]
        Coding(sum(parts[kind][index] for kind in kinds), sum(stored[kind][index] for kind in kinds), 0.0)
        for kinds in (set(parts) - of_values, of_values)
    )


def total(codings: Sequence[Coding]) -> Coding:
    """Sum of all three figures."""
    return Coding(
        sum(coding.raw_bytes for coding in codings),
        sum(coding.stored_bytes for coding in codings),
        sum(coding.bound_bits for coding in codings),
    )


def location_bound_bits(num_entries: int, num_elements: int) -> float:
    """Bits that tell which E of N elements changed, N * H(E / N), if every set of E is as likely."""
    if not 0 < num_entries < num_elements:
        return 0.0
    share = num_entries / num_elements
    return -num_elements * (share * log2(share) + (1 - share) * log2(1 - share))


def value_bound_bits(values: NDArray[np.unsignedinteger[Any]]) -> float:
    """Bits of ``values`` [E] under their own frequencies: E times the entropy of order 0."""
    if not values.size:
        return 0.0
    counts = np.unique(values, return_counts=True)[1]
    # the sum is at least 0; rounding may leave a tiny negative for a single value, and -0.0 looks odd
    return max(0.0, float((counts * np.log2(values.size / counts)).sum()))


def _inspect(row: Row, item: Item, codings: tuple[Coding, Coding]) -> ItemInspection:
    locations, values = codings
    location_bits = location_bound_bits(item.num_entries, _span(item, is_strips(row.location_type)))
    return ItemInspection(
        name=item.name,
        shape=tuple(item.shape),
        dtype=item.dtype,
        encoding=item.encoding.value,
        num_elements=item.num_elements,
        num_entries=item.num_entries,
        num_changed=_num_changed(item),
        location_kind=location_name(row.location_type),
        locations=replace(locations, bound_bits=location_bits),
        values=replace(values, bound_bits=value_bound_bits(item.values)),
    )


def _num_changed(item: Item) -> int:
    absolute = item.encoding is Encoding.OVERWRITE
    return item.num_entries if absolute else int(np.count_nonzero(item.values))


def _span(item: Item, in_strips: bool) -> int:
    """Elements from the first to the last change; of a strip of columns only those in it."""
    if not item.num_entries:
        return 0
    if not in_strips or len(item.shape) < 2:
        return int(item.locations[-1] - item.locations[0]) + 1
    rows, columns = np.divmod(item.locations, item.shape[-1])
    return int(rows[-1] - rows[0] + 1) * int(columns.max() - columns.min() + 1)
