"""Payloads that are wrong somewhere: only PayloadError leaves the parser, and nothing wrong passes.

``reseal`` and ``join`` repair the digest, so that the checks behind it are reached.
"""

import struct
from dataclasses import replace

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.property.payload_items import payload_items, simple_item

from dcr.codec import Item, Limits, Payload, decode_payload, encode_payload
from dcr.codec.head import HEAD_BYTES
from dcr.codec.kinds import MANDATORY, Kind
from dcr.codec.sections import write_sections
from dcr.config import CodecConfig
from dcr.errors import PayloadError
from dcr.model import AttemptId, AuditDigest, Encoding
from dcr.testing.payload_surgery import Parts, encode_again, join, join_body, reseal, split

TAU = AttemptId(number=9, version=4)
PUBLISHED = CodecConfig(name="published")
HUGE = 10**12
TABLE_END = HEAD_BYTES + 3 * 24


def encode(*items: Item) -> bytes:
    return encode_payload(
        items, attempt=TAU, owner=1, sequence=2, run="ab" * 16, catalogue="cd" * 16, codec=PUBLISHED
    )


def two_items() -> bytes:
    return encode(simple_item("run", stride=1), simple_item("gaps", dtype="float32"))


GOOD = two_items()


def refused(data: bytes, match: str | None = None) -> None:
    with pytest.raises(PayloadError, match=match):
        decode_payload(data)


def refused_or_other(data: bytes) -> None:
    """A change that the digest vouches for must be refused or seen, never lost."""
    try:
        payload = decode_payload(data)
    except PayloadError:
        return
    assert (payload.identity, payload.items) != (good().identity, good().items)


def good() -> Payload:
    return decode_payload(GOOD)


def patched(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def flips(data: bytes, end: int) -> list[bytes]:
    return [patched(data, at, bytes([data[at] ^ bits])) for at in range(end) for bits in (1, 0x80, 0xFF)]


def test_every_flipped_byte_is_refused() -> None:
    for wrong in flips(GOOD, len(GOOD)):
        refused(wrong)


def test_every_truncation_and_extension_is_refused() -> None:
    for length in range(len(GOOD)):
        refused(GOOD[:length])
        if length >= HEAD_BYTES:
            refused(reseal(GOOD[:length]))
    refused(GOOD + b"\0")
    refused(reseal(GOOD + b"\0"))
    refused(GOOD + GOOD)


def test_head_and_section_table_flipped_behind_a_true_digest() -> None:
    for wrong in flips(GOOD, TABLE_END):
        if reseal(wrong) != GOOD:  # only the digest itself was flipped
            refused_or_other(reseal(wrong))


def test_item_table_flipped_behind_a_true_digest() -> None:
    parts = split(GOOD)
    for wrong in flips(parts.sections[Kind.ITEM_TABLE], len(parts.sections[Kind.ITEM_TABLE])):
        refused_or_other(join(replace(parts, sections=parts.sections | {Kind.ITEM_TABLE: wrong})))


@pytest.mark.parametrize("kind", MANDATORY)
@pytest.mark.parametrize(("keep", "extra"), [(None, b"\0"), (-1, b""), (0, b"")])
def test_sections_of_another_length(kind: Kind, keep: int | None, extra: bytes) -> None:
    parts = split(GOOD)
    refused(join(replace(parts, sections=parts.sections | {kind: parts.sections[kind][:keep] + extra})))


@pytest.mark.parametrize("size", [HUGE, 2**63, 2**64 - 1])
@pytest.mark.parametrize("at", [80, 88, 96, 104, HEAD_BYTES + 8, HEAD_BYTES + 16, HEAD_BYTES + 56])
def test_huge_declared_sizes(at: int, size: int) -> None:
    refused(reseal(patched(GOOD, at, struct.pack("<Q", size))))


@pytest.mark.parametrize("at", range(24 + 5 * 2 * 8)[::8])
def test_huge_numbers_in_the_item_table(at: int) -> None:
    parts = split(GOOD)
    table = patched(parts.sections[Kind.ITEM_TABLE], at, struct.pack("<Q", HUGE))
    refused_or_other(join(replace(parts, sections=parts.sections | {Kind.ITEM_TABLE: table})))


def test_a_frame_that_claims_more_than_the_limits_is_not_decompressed() -> None:
    """Table, frame and head agree on 10**12 bytes of values and as many entries."""
    frame = bytes([0x28, 0xB5, 0x2F, 0xFD, 0xE0]) + struct.pack("<Q", HUGE) + b"\x01\0\0"
    parts = split(GOOD)
    body = bytearray(write_sections([(Kind.ITEM_TABLE, b""), (Kind.LOCATIONS, b"")], level=1))
    rows = bytes(body[:48]) + struct.pack("<IIQQ", Kind.VALUES, 0, HUGE, len(frame))
    bomb = join_body(replace(parts.head, num_entries=HUGE), rows + body[48:] + frame, raw_bytes=HUGE)
    refused(bomb, "entries")
    with pytest.raises(PayloadError, match="VALUES"):
        decode_payload(bomb, limits=Limits(max_entries=1 << 48, max_section_bytes=1 << 39))


def sections_with(rows: list[tuple[int, int]]) -> bytes:
    """GOOD with its sections under other (kind, reserved) words."""
    body = bytearray(GOOD[HEAD_BYTES:])
    for index, row in enumerate(rows):
        struct.pack_into("<II", body, index * 24, *row)
    return join_body(split(GOOD).head, bytes(body), raw_bytes=split(GOOD).head.raw_bytes)


@pytest.mark.parametrize(
    "rows",
    [[(4, 0), (2, 0), (3, 0)], [(1, 0), (1, 0), (3, 0)], [(2, 0), (1, 0), (3, 0)], [(1, 0), (2, 1), (3, 0)]],
)
def test_unknown_repeated_reordered_or_reserved_sections(rows: list[tuple[int, int]]) -> None:
    assert decode_payload(sections_with([(1, 0), (2, 0), (3, 0)])).items == good().items
    refused(sections_with(rows), "section")


@pytest.mark.parametrize("count", [0, 2, 4, 2**32 - 1])
def test_other_numbers_of_sections(count: int) -> None:
    refused(reseal(patched(GOOD, 12, struct.pack("<I", count))))


@pytest.mark.parametrize(
    ("at", "new", "match"),
    [
        (0, b"\x88", "not a payload"),
        (8, b"\x02", "format 2"),
        (10, b"\x01", "flags"),
        (11, b"\x80", "flags"),
        (39, b"\x80", "range"),
        (47, b"\x80", "range"),
        (56, struct.pack("<q", -2), "range"),
    ],
)
def test_head_fields(at: int, new: bytes, match: str) -> None:
    refused(reseal(patched(GOOD, at, new)), match)


U64_COLUMNS = 24  # header; then entries, values_at, locations_at, digest_total, digest_count [2]
U8_COLUMNS = 24 + 5 * 16 + 8  # dims, dtype, encoding, location_type, flags [2]


@pytest.mark.parametrize(
    ("at", "new", "match"),
    [
        (U8_COLUMNS, 17, "dims 17"),
        (U8_COLUMNS + 2, 15, "dtype 15"),
        (U8_COLUMNS + 4, 0, "encoding 0"),
        (U8_COLUMNS + 4, 4, "encoding 4"),
        (U8_COLUMNS + 5, 3, "delta16 is not for float32"),
        (U8_COLUMNS + 6, 3, "location_type 3"),
        (U8_COLUMNS + 7, 15, "location_type 15"),
        (U8_COLUMNS + 8, 6, "flags 6"),
        (U8_COLUMNS + 8, 8, "flags 8"),
        (U8_COLUMNS + 8, 5, "pairs are for delta16"),
        (U8_COLUMNS + 8, 0, "digest"),
        (U8_COLUMNS + 6, 1, "overlap|buffers|add up"),
        (U64_COLUMNS, 4, "add up"),
        (U64_COLUMNS + 16, 1, "overlap or leave a hole"),
        (U64_COLUMNS + 24, 0, "overlap or leave a hole"),
        (U64_COLUMNS + 40, 1, "overlap or leave a hole"),
        (U64_COLUMNS + 55, 0xFF, "digest"),
        (U64_COLUMNS + 71, 1, "digest"),
        (-1, 0xFF, "UTF-8"),
    ],
)
def test_item_table_cells(at: int, new: int, match: str) -> None:
    parts = split(GOOD)
    table = bytearray(parts.sections[Kind.ITEM_TABLE])
    table[at] = new
    refused(join(replace(parts, sections=parts.sections | {Kind.ITEM_TABLE: bytes(table)})), match)


def one_item(shape: tuple[int, ...], locations: list[int]) -> Parts:
    where = np.array(locations, np.int64)
    item = Item("w", shape, "uint8", Encoding.XOR, where, np.ones(len(where), np.uint8), AuditDigest(0, 0))
    return split(encode(item))


def with_dims(parts: Parts, *dims: int) -> bytes:
    """The same item in a tensor of other dims; the name is one byte long."""
    table = (
        parts.sections[Kind.ITEM_TABLE][: -1 - 8 * len(dims)] + struct.pack(f"<{len(dims)}Q", *dims) + b"w"
    )
    return join(replace(parts, sections=parts.sections | {Kind.ITEM_TABLE: table}))


@pytest.mark.parametrize("locations", [[7, 8, 9], [0, 5, 9], [9]])
def test_locations_outside_the_shape(locations: list[int]) -> None:
    parts = one_item((10, 1), locations)
    assert len(decode_payload(with_dims(parts, 10, 1)).items) == 1
    for dims in [(9, 1), (0, 10), (2**63, 2), (2**32, 2**32), (2**64 - 1, 1)]:
        refused(with_dims(parts, *dims))


@pytest.mark.parametrize("gaps", [[2**64 - 1, 0], [2**63, 2**63 - 2], [2**63 - 3] * 3, [0, 2**63 - 2]])
def test_gaps_that_wrap_around(gaps: list[int]) -> None:
    parts = one_item((2**63 - 1,), [0, 2**40, 2**41][: len(gaps)])
    locations = struct.pack(f"<{len(gaps)}Q", *gaps)
    refused(join(replace(parts, sections=parts.sections | {Kind.LOCATIONS: locations})), "gap")


def test_a_run_that_wraps_around() -> None:
    parts = one_item((2**63 - 1,), [5, 6])
    table = bytearray(parts.sections[Kind.ITEM_TABLE])
    struct.pack_into("<Q", table, 24 + 16, 2**64 - 1)
    refused(join(replace(parts, sections=parts.sections | {Kind.ITEM_TABLE: bytes(table)})), "run")


@pytest.mark.parametrize(("column", "number"), [(24 + 16, 1), (24 + 5 * 8 + 4 + 3, 1)])
def test_an_empty_item_that_is_not_the_run_at_0(column: int, number: int) -> None:
    parts = one_item((10,), [])
    table = bytearray(parts.sections[Kind.ITEM_TABLE])
    table[column] = number
    refused(join(replace(parts, sections=parts.sections | {Kind.ITEM_TABLE: bytes(table)})), "run|gaps")


def test_an_element_claimed_twice() -> None:
    first, second = simple_item("a"), simple_item("b")
    parts = split(encode(first, second))
    table = parts.sections[Kind.ITEM_TABLE][:-2] + b"aa"
    refused(join(replace(parts, sections=parts.sections | {Kind.ITEM_TABLE: table})), "same element")


def frame_replaced(frame: bytes) -> bytes:
    """GOOD with another frame for its values, correctly measured in the table."""
    parts = split(GOOD)
    raw_bytes = len(parts.sections[Kind.VALUES])
    body = bytearray(write_sections(list(parts.sections.items()), level=1))
    old = struct.unpack_from("<Q", body, 64)[0]
    struct.pack_into("<Q", body, 64, len(frame))
    assert struct.unpack_from("<Q", body, 56)[0] == raw_bytes
    return join_body(parts.head, bytes(body[:-old]) + frame, raw_bytes=parts.head.raw_bytes)


def frames() -> dict[str, bytes]:
    values = split(GOOD).sections[Kind.VALUES]
    good = zstandard.ZstdCompressor(level=1).compress(values)
    return {
        "no content size": zstandard.ZstdCompressor(level=1, write_content_size=False).compress(values),
        "shorter": zstandard.ZstdCompressor(level=1).compress(values[:-1]),
        "two frames": good + good,
        "bytes after it": good + b"\0",
        "a skippable frame after it": good + b"\x50\x2a\x4d\x18\0\0\0\0",
        "a skippable frame": b"\x50\x2a\x4d\x18" + struct.pack("<I", len(values)) + values,
        "a skippable frame before it": b"\x50\x2a\x4d\x18\0\0\0\0" + good,
        "cut": good[:-1],
        "nothing": b"",
        "not zstd": bytes(range(40)),
    }


@pytest.mark.parametrize("frame", frames().values(), ids=frames())
def test_other_frames(frame: bytes) -> None:
    refused(frame_replaced(frame), "section VALUES")


EMPTY_FRAME = zstandard.ZstdCompressor(level=1).compress(b"")
HIDING = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"


@pytest.mark.parametrize("frame", [EMPTY_FRAME, EMPTY_FRAME[:-1], EMPTY_FRAME + b"junk", HIDING, b"x"])
def test_an_empty_section_has_no_frame(frame: bytes) -> None:
    """The zstd library would read none of these to its end."""
    parts = split(encode(simple_item(stride=1)))
    assert parts.sections[Kind.LOCATIONS] == b""
    body = bytearray(write_sections(list(parts.sections.items()), level=1))
    table_frame = struct.unpack_from("<Q", body, 16)[0]
    struct.pack_into("<Q", body, 24 + 16, len(frame))
    body[72 + table_frame : 72 + table_frame] = frame
    refused(join_body(parts.head, bytes(body), raw_bytes=parts.head.raw_bytes), "section LOCATIONS")


def test_other_levels_and_checksums_are_fine() -> None:
    values = split(GOOD).sections[Kind.VALUES]
    frame = zstandard.ZstdCompressor(level=19, write_checksum=True).compress(values)
    assert decode_payload(frame_replaced(frame)).items == good().items
    refused(frame_replaced(frame[:-1] + bytes([frame[-1] ^ 1])), "section VALUES")


edits = st.lists(st.tuples(st.integers(0, 2**16), st.binary(max_size=9)), max_size=4)


def edited(data: bytes, changes: list[tuple[int, bytes]]) -> bytes:
    for at, new in changes:
        data = patched(data, at % (len(data) + 1), new)
    return data


@given(payload_items, st.fixed_dictionaries(dict.fromkeys(MANDATORY, edits)), edits, st.booleans())
def test_edited_payloads_are_refused_or_consistent(
    items: list[Item],
    inside: dict[int, list[tuple[int, bytes]]],
    outside: list[tuple[int, bytes]],
    cut: bool,
) -> None:
    """Whatever the parser accepts, the encoder accepts and gives back."""
    parts = split(encode(*items))
    sections = {kind: edited(raw, inside[kind]) for kind, raw in parts.sections.items()}
    data = join(replace(parts, sections=sections))
    if not cut:
        data = reseal(patched(data, HEAD_BYTES, edited(data[HEAD_BYTES:], outside)))
    consistent(data)


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes(noise: bytes, headed: bool) -> None:
    consistent(reseal(GOOD[:HEAD_BYTES] + noise) if headed else noise)


def consistent(data: bytes) -> None:
    try:
        payload = decode_payload(data)
    except PayloadError:
        return
    assert decode_payload(encode_again(payload)).items == payload.items
