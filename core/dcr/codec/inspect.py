"""What a payload consists of, and how close its coding comes to what its content needs (DESIGN R7, B8).

Bounds are of order 0: nothing is assumed about neighbours. E changes among N elements need N * H(E / N)
bits for the locations, H being the binary entropy; N counts from the first to the last change, because
an owner may hold a part of the tensor only, and how large a part a payload does not say. Values need
E times the entropy of their frequencies in the item.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec.head import HEAD_BYTES, Head
from dcr.codec.item import Item
from dcr.codec.limits import Limits
from dcr.codec.locations import RUN
from dcr.codec.payload import decode_payload, read_rows
from dcr.codec.sections import Kind, SectionRow, read_section_table
from dcr.codec.table import Row


@dataclass(frozen=True, slots=True)
class Coding:
    """Locations or values of one item, or of several. ``stored_bytes`` is after compression.

    A section is compressed as a whole: an item's part of it is attributed in proportion to its raw
    bytes, so it is exact for a payload and an estimate for an item.
    """

    raw_bytes: int
    stored_bytes: float
    bound_bits: float


@dataclass(frozen=True, slots=True)
class ItemInspection:
    """One item. ``location_kind`` is ``run``, or ``gap8`` and so on by the width of the gaps in bits."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    encoding: str
    num_elements: int
    num_entries: int
    location_kind: str
    locations: Coding
    values: Coding

    @property
    def changed_fraction(self) -> float:
        """Entries over elements of the whole tensor; 0 for a tensor without elements."""
        return self.num_entries / self.num_elements if self.num_elements else 0.0


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
    head, rows, _ = read_rows(view, limits or Limits())
    table = {row.kind: row for row in read_section_table(view[HEAD_BYTES:], head.num_sections)}
    items = tuple(_inspect(row, item, table) for row, item in zip(rows, payload.items, strict=True))
    items_table = table[Kind.ITEM_TABLE]
    framing = HEAD_BYTES + head.body_bytes - sum(row.frame_bytes for row in table.values())
    return PayloadInspection(
        head, items, Coding(items_table.raw_bytes, items_table.frame_bytes, 0.0), framing
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


def _inspect(row: Row, item: Item, table: dict[Kind, SectionRow]) -> ItemInspection:
    return ItemInspection(
        name=item.name,
        shape=tuple(item.shape),
        dtype=item.dtype,
        encoding=item.encoding.value,
        num_elements=item.num_elements,
        num_entries=item.num_entries,
        location_kind="run" if row.location_type == RUN else f"gap{8 * row.location_type}",
        locations=_coding(
            row.locations_bytes,
            table[Kind.LOCATIONS],
            location_bound_bits(item.num_entries, _span(item)),
        ),
        values=_coding(row.values_bytes, table[Kind.VALUES], value_bound_bits(item.values)),
    )


def _span(item: Item) -> int:
    return int(item.locations[-1] - item.locations[0]) + 1 if item.num_entries else 0


def _coding(raw_bytes: int, section: SectionRow, bound_bits: float) -> Coding:
    share = raw_bytes / section.raw_bytes if section.raw_bytes else 0.0
    return Coding(raw_bytes, share * section.frame_bytes, bound_bits)
