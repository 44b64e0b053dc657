"""Payloads of the coding ``planes`` that are wrong somewhere: nothing but PayloadError, and never unseen.

``join`` repairs sizes and digest, so that the checks behind them are reached.
"""

import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.location_items import every_kind, every_layout, item, spread
from tests.property.payload_items import payload_items

from dcr.codec import Item, Limits, Payload, decode_payload, encode_payload
from dcr.codec.engines import EngineName
from dcr.codec.kinds import Kind
from dcr.codec.table import read_table
from dcr.config import CodecConfig
from dcr.errors import PayloadError
from dcr.model import AttemptId, Encoding
from dcr.testing.payload_surgery import Parts, encode_again, join, split

ENGINES: tuple[EngineName, ...] = ("numpy", "compiled")


def encode(*items: Item) -> bytes:
    planes = CodecConfig(name="planes")
    return encode_payload(items, attempt=AttemptId(9, 4), owner=1, sequence=2, codec=planes)


ALL = encode(*every_kind().values(), *every_layout())


def refused(parts: Parts, match: str | None = None) -> None:
    data = join(parts)
    for engine in ENGINES:
        with pytest.raises(PayloadError, match=match):
            decode_payload(data, engine=engine)


def seen(data: bytes, good: bytes) -> None:
    """Refused by both engines, or read alike as something else."""
    found = read(data)
    assert found is None or found.items != decode_payload(good).items


def read(data: bytes) -> Payload | None:
    """What both engines make of ``data``; None if they refuse it."""
    found: list[Payload | None] = []
    for engine in ENGINES:
        try:
            found.append(decode_payload(data, engine=engine))
        except PayloadError:
            found.append(None)
    assert found[0] == found[1]
    return found[0]


def changed(parts: Parts, kind: int, change: Callable[[bytearray], None]) -> Parts:
    raw = bytearray(parts.sections[kind])
    change(raw)
    return replace(parts, sections=parts.sections | {kind: bytes(raw)})


def flipped(data: bytes, kind: int, at: int, bits: int) -> bytes:
    def flip(raw: bytearray) -> None:
        raw[at] ^= bits

    return join(changed(split(data), kind, flip))


@pytest.mark.parametrize("kind", sorted(split(ALL).sections))
def test_a_flipped_byte_in_any_section_is_refused_or_seen(kind: int) -> None:
    size = len(split(ALL).sections[kind])
    for index, at in enumerate(range(0, size, max(1, size // (40 if kind == Kind.ITEM_TABLE else 3)))):
        seen(flipped(ALL, kind, at, (0xFF, 1, 0x80)[index % 3]), ALL)


@pytest.mark.parametrize("kind", sorted(kind for kind in split(ALL).sections if kind > Kind.VALUES))
@pytest.mark.parametrize(("keep", "extra"), [(None, b"\0"), (None, b"\xff"), (-1, b"")])
def test_optional_sections_of_another_length(kind: int, keep: int | None, extra: bytes) -> None:
    parts = split(ALL)
    raw = parts.sections[kind][:keep] + extra
    if raw:
        refused(replace(parts, sections=parts.sections | {kind: raw}))
    refused(replace(parts, sections={at: data for at, data in parts.sections.items() if at != kind}))


@pytest.mark.parametrize("kind", [9, 15, 16, 18, 24, 256, 273, 290, 800, 802, 2**32 - 1])
def test_sections_that_are_unknown_or_not_used(kind: int) -> None:
    parts = split(encode(item("w", spread(50, 0.01))))
    sections = dict(sorted({**parts.sections, kind: b"\0"}.items()))
    refused(replace(parts, sections=sections), "unknown kind|limit is")


def test_optional_sections_are_in_order_and_not_empty() -> None:
    parts = split(ALL)
    first, *rest = [kind for kind in parts.sections if kind > Kind.VALUES]
    order = [*list(parts.sections)[:3], *rest, first]
    refused(replace(parts, sections={kind: parts.sections[kind] for kind in order}), "out of order")
    refused(replace(parts, sections=parts.sections | {first: b""}), "optional and empty")


def alone(name: str) -> Parts:
    return split(encode(every_kind()[name]))


def table_with(parts: Parts, column: int, number: int) -> Parts:
    """The single item's u64 in ``column``: entries, values_at, locations_at, digest total and count."""
    return changed(parts, Kind.ITEM_TABLE, lambda raw: struct.pack_into("<Q", raw, 24 + 8 * column, number))


@pytest.mark.parametrize("name", ["stride", "escape8", "planes16", "rice", "blocks", "strips"])
@pytest.mark.parametrize("start", [2**63 - 1, 2**63, 2**64 - 1, 2**63 - 2])
def test_starts_outside_the_tensor(name: str, start: int) -> None:
    refused(table_with(alone(name), 2, start))


@pytest.mark.parametrize(
    "numbers", [(0, 768), (768, 768), (2**63, 768), (192, 191), (192, 2**63), (192, 2**64 - 1), (1, 768)]
)
def test_strips_that_cannot_be(numbers: tuple[int, int]) -> None:
    parts = alone("strips")
    parts = replace(parts, sections=parts.sections | {Kind.PARAMETERS: struct.pack("<2Q", *numbers)})
    if numbers == (1, 768):  # in so large a tensor there is room for them
        assert set(decode_payload(join(parts)).items[0].locations % 768) == {192}
    else:
        refused(parts, "strip")


@pytest.mark.parametrize("name", every_kind())
def test_offsets_of_values_that_are_not_words(name: str) -> None:
    refused(table_with(alone(name), 1, 1), "overlap")


@pytest.mark.parametrize(
    "numbers", [(0, 9), (9, 9), (5, 4), (3, 9), (5, 2**63), (100, 2**64 - 1), (2**64 - 1, 1)]
)
def test_strides_that_cannot_be(numbers: tuple[int, int]) -> None:
    parts = alone("stride")
    parts = replace(parts, sections=parts.sections | {Kind.PARAMETERS: struct.pack("<2Q", *numbers)})
    if numbers == (100, 2**64 - 1):  # a single block may lie anywhere
        assert np.diff(decode_payload(join(parts)).items[0].locations).tolist() == [1] * 99
    else:
        refused(parts, "blocks")


@pytest.mark.parametrize("count", [0, 9, 11, 2**40, 2**64 - 1])
def test_numbers_of_blocks_that_cannot_be(count: int) -> None:
    parts = alone("blocks")
    refused(replace(parts, sections=parts.sections | {Kind.PARAMETERS: struct.pack("<Q", count)}))


def test_masks_that_are_empty_or_hold_another_number() -> None:
    parts = alone("blocks")
    masks = np.frombuffer(parts.sections[Kind.MASKS], "<u8")
    moved = masks.copy()
    moved[0], moved[1] = 0, masks[0] | masks[1]
    for wrong in (np.zeros_like(masks), masks ^ np.uint64(1), moved):
        refused(replace(parts, sections=parts.sections | {Kind.MASKS: wrong.tobytes()}), "masks")


@pytest.mark.parametrize("name", ["escape8", "planes16", "planes32", "rice", "blocks"])
def test_the_last_element_is_the_last_that_can_be(name: str) -> None:
    row = every_kind()[name]
    last = int(row.locations[-1])
    exact = Item(row.name, (last + 1,), row.dtype, row.encoding, row.locations, row.values)
    parts = split(encode(exact))
    at = len(parts.sections[Kind.ITEM_TABLE]) - len(name) - 8
    shorter = changed(parts, Kind.ITEM_TABLE, lambda raw: struct.pack_into("<Q", raw, at, last))
    refused(shorter, "beyond|not within")


@pytest.mark.parametrize("name", ["rice", "blocks"])
def test_bits_that_are_not_there_or_left_over(name: str) -> None:
    parts = alone(name)
    unary, low = parts.sections[Kind.UNARY], parts.sections[Kind.LOW_BITS]
    refused(replace(parts, sections=parts.sections | {Kind.UNARY: bytes(len(unary))}), "too early")
    refused(replace(parts, sections=parts.sections | {Kind.UNARY: b"\xff" * len(unary)}))
    for kind, raw in ((Kind.UNARY, unary), (Kind.LOW_BITS, low)):
        if raw[-1] < 0x80:  # else the last byte is full
            refused(changed(parts, kind, lambda raw: raw.__setitem__(-1, raw[-1] | 0x80)))


def test_a_bit_of_one_item_cannot_become_one_of_the_next() -> None:
    first, second = (item(name, spread(51, 0.01, seed)) for seed, name in enumerate("ab"))
    parts = split(encode(first, second))
    assert len(parts.sections[Kind.UNARY]) > 20
    for at in range(len(parts.sections[Kind.UNARY])):
        seen(flipped(join(parts), Kind.UNARY, at, 0x80), join(parts))


@pytest.mark.parametrize("k", [0, 30, 62])
def test_gaps_that_wrap_around(k: int) -> None:
    """Any low bits, in unary numbers as large as they can be."""
    parts = alone("rice")
    column = 24 + 5 * 8 + 4 + 3
    parts = changed(parts, Kind.ITEM_TABLE, lambda raw: raw.__setitem__(column, 64 + k))
    low = b"\xff" * ((201 * k + 7) // 8)
    for unary in (b"\xff" * 26, bytes(182) + b"\xff" * 26, b"\0\x80" * 104):
        sections = parts.sections | {Kind.LOW_BITS: low, Kind.UNARY: unary}
        data = replace(parts, sections={kind: raw for kind, raw in sections.items() if raw})
        if k:
            refused(data)
        else:
            seen(join(data), ALL)


def test_differences_of_more_than_16_bits() -> None:
    parts = split(encode(item("w", spread(40, 0.01), encoding=Encoding.DELTA16)))
    assert len(parts.sections[Kind.DELTA16_EXCESS_BYTE1]) == 4
    full = dict.fromkeys((Kind.DELTA16_EXCESS_BYTE0, Kind.DELTA16_EXCESS_BYTE1), b"\xff" * 4)
    refused(replace(parts, sections=parts.sections | full), "exceeds 16 bits")


def test_half_a_byte_after_the_last_difference() -> None:
    parts = split(encode(item("w", spread(41, 0.01))))
    wrong = changed(parts, Kind.DELTA16_PAIRS, lambda raw: raw.__setitem__(-1, raw[-1] | 0x10))
    refused(wrong, "after its last value")


def test_pairs_and_delta16_are_for_differences_of_two_bytes() -> None:
    parts = alone("rice")
    dtype, encoding = 24 + 5 * 8 + 4 + 1, 24 + 5 * 8 + 4 + 2
    refused(changed(parts, Kind.ITEM_TABLE, lambda raw: raw.__setitem__(dtype, 11)), "delta16 is not for")
    refused(changed(parts, Kind.ITEM_TABLE, lambda raw: raw.__setitem__(encoding, 1)), "pairs are for")


def test_claims_are_compared_with_the_item_table_before_anything_else_is_decompressed() -> None:
    """Every section that holds far more than its items can use."""
    parts = split(ALL)
    for kind in sorted(parts.sections)[1:]:
        raw = bytes(1 << 20)
        data = join(replace(parts, sections=parts.sections | {kind: raw}))
        with pytest.raises(PayloadError, match="the limit is"):
            decode_payload(data)
    with pytest.raises(PayloadError, match="the limit is"):
        decode_payload(ALL, limits=Limits(max_section_bytes=4096))


def test_entries_whose_values_are_missing_cost_nothing() -> None:
    """A billion entries in 300 bytes: refused before 8 bytes are spent on each location."""
    for name in every_kind():
        parts = table_with(alone(name), 0, 1 << 30)
        parts = replace(parts, head=replace(parts.head, num_entries=1 << 30))
        tracemalloc.start()
        refused(parts, "items use .* which holds")
        assert tracemalloc.get_traced_memory()[1] < 1 << 24
        tracemalloc.stop()


def test_dims_that_no_item_has_are_not_unpacked() -> None:
    """8 bytes each in the table, 40 as numbers of Python."""
    table = alone("rice").sections[Kind.ITEM_TABLE]
    dims = np.full(1 << 17, 1 << 40, "<u8").tobytes()
    table = struct.pack("<QQQ", 1, 1 << 17, 4) + table[24 : -8 - len("rice")] + dims + b"rice"
    tracemalloc.start()
    with pytest.raises(PayloadError, match="do not add up"):
        read_table(table, num_items=1, num_entries=201, limits=Limits())
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


edits = st.lists(st.tuples(st.integers(0, 2**16), st.binary(max_size=9)), max_size=3)


@given(payload_items, st.data())
def test_edited_payloads_are_refused_or_consistent(items: list[Item], data: st.DataObject) -> None:
    """Whatever the parser accepts, both codings accept and give back."""
    parts = split(encode(*items))
    sections = dict(parts.sections)
    for kind in data.draw(st.sets(st.sampled_from(sorted(sections)), max_size=3)):
        raw = bytearray(sections[kind])
        for at, new in data.draw(edits):
            start = at % (len(raw) + 1)
            raw[start : start + len(new)] = new
        sections[kind] = bytes(raw)
    found = read(join(replace(parts, sections=sections)))
    if found is not None:
        for codec in ("planes", "published"):
            assert decode_payload(encode_again(found, codec)).items == found.items
