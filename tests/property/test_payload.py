"""Payload format v1: decoding inverts encoding, and what may not be encoded is refused by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.property.payload_items import identities, payload_items, simple_item

from dcr.codec import (
    CODECS,
    Item,
    Limits,
    decode_payload,
    encode_payload,
    payload_digest,
    read_head,
    stated_digest,
)
from dcr.codec.item import takes_encoding
from dcr.codec.kinds import GAP_DTYPES, RUN
from dcr.codec.locations import encode_locations
from dcr.config import CodecConfig
from dcr.errors import ConfigError, PayloadError
from dcr.model import GENESIS, AttemptId, AuditDigest, Encoding, bits_dtype, known_dtypes
from dcr.testing.payload_surgery import split

DATA = Path(__file__).parent.parent / "data"
TAU = AttemptId(number=9, version=4)


PUBLISHED = CodecConfig(name="published")


def encode(*items: Item, codec: str = "published") -> bytes:
    return encode_payload(items, attempt=TAU, owner=1, sequence=2, codec=CodecConfig(name=codec))


@given(payload_items, identities, st.sampled_from(CODECS))
def test_decode_inverts_encode(items: list[Item], identity: dict[str, Any], name: str) -> None:
    codec = CodecConfig(name=name)
    data = encode_payload(items, **identity, codec=codec)
    payload = decode_payload(data)
    assert list(payload.items) == items
    assert {field: getattr(payload, field) for field in identity} == identity
    assert payload.digest == payload_digest(data) == read_head(data).digest == stated_digest(data)
    assert encode_payload(payload.items, **identity, codec=codec) == data


@pytest.mark.parametrize("dtype", known_dtypes())
@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("stride", [1, 5])
@pytest.mark.parametrize("codec", CODECS)
def test_every_dtype_and_encoding(dtype: str, encoding: Encoding, stride: int, codec: str) -> None:
    bits = bits_dtype(dtype)
    values = np.array([0, 1, np.iinfo(bits).max], dtype=bits)
    item = Item("w", (20,), dtype, encoding, np.arange(3) * stride + 2, values)
    if not takes_encoding(dtype, encoding):
        with pytest.raises(ConfigError, match="delta16 is for dtypes of 2 bytes"):
            encode(item)
        return
    assert decode_payload(encode(item, codec=codec)).items == (item,)


@pytest.mark.parametrize(
    ("gap", "width"),
    [(0, 1), (255, 1), (256, 2), (65535, 2), (65536, 4), (2**32 - 1, 4), (2**32, 8), (2**62, 8)],
)
@pytest.mark.parametrize("first", [0, 3])
def test_gaps_take_the_smallest_integer(gap: int, width: int, first: int) -> None:
    locations = np.array([first, first + 2, first + 3 + gap], dtype=np.int64)
    item = Item("w", (1 << 20, (1 << 43) - 1), "uint8", Encoding.XOR, locations, np.ones(3, np.uint8))
    assert encode_locations(locations)[0] == width
    assert decode_payload(encode(item)).items == (item,)


def test_the_largest_tensor_and_its_last_element() -> None:
    last = 2**63 - 2
    values = np.array([1, 2], dtype=np.uint8)
    item = Item("w", (2**63 - 1,), "int8", Encoding.XOR, np.array([0, last]), values)
    run = Item("v", (2**63 - 1,), "int8", Encoding.XOR, np.array([last - 1, last]), values)
    assert decode_payload(encode(item, run)).items == (item, run)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("size", "width"), [(2**31, 4), (2**31 + 1, 8)])
def test_positions_are_decoded_as_small_as_the_tensor_allows(codec: str, size: int, width: int) -> None:
    item = Item("w", (size,), "int8", Encoding.XOR, np.array([0, 7, size - 1]), np.ones(3, np.uint8))
    (decoded,) = decode_payload(encode(item, codec=codec)).items
    assert decoded.positions.itemsize == width
    assert decoded.locations.dtype == np.int64
    assert decoded.locations.tolist() == [0, 7, size - 1]
    assert decoded == item
    assert encode(decoded, codec=codec) == encode(item, codec=codec)


def test_a_run_adds_nothing_to_the_location_buffer() -> None:
    assert encode_locations(np.arange(5, 5000)) == (RUN, 5, b"")
    assert encode_locations(np.empty(0, np.int64)) == (RUN, 0, b"")
    assert encode_locations(np.array([7])) == (RUN, 7, b"")


def test_scalars_empty_tensors_and_empty_payloads() -> None:
    none = np.empty(0, np.int64)
    items = (
        Item("scalar", (), "float32", Encoding.OVERWRITE, np.array([0]), np.array([0x7FC00001], np.uint32)),
        Item("empty", (4, 0), "int64", Encoding.XOR, none, np.empty(0, np.uint64)),
        Item("unchanged", (4,), "bool", Encoding.XOR, none, np.empty(0, np.uint8), AuditDigest(0, 0)),
    )
    assert decode_payload(encode(*items)).items == items
    assert decode_payload(encode()).items == ()


def test_the_anchor_has_no_parent() -> None:
    assert decode_payload(encode_payload([], attempt=GENESIS, owner=0, sequence=0)).parent == -1
    assert decode_payload(encode()).parent == TAU.version - 1


def test_decoded_arrays_belong_to_the_caller() -> None:
    odd = simple_item("odd", dtype="uint8")
    for codec in CODECS:
        items = decode_payload(encode(odd, simple_item("wide", dtype="int64"), codec=codec)).items
        for array in [array for item in items for array in (item.values, item.positions)]:
            assert array.flags["WRITEABLE"]
            assert array.flags["ALIGNED"]


def test_two_items_may_share_a_tensor_but_no_element() -> None:
    first = simple_item()
    other = Item("w", (10, 100), "bfloat16", Encoding.OVERWRITE, first.locations + 1, first.values)
    assert decode_payload(encode(first, other)).items == (first, other)
    with pytest.raises(ConfigError, match="same element"):
        encode(first, Item("w", (10, 100), "bfloat16", Encoding.OVERWRITE, first.locations, first.values))
    with pytest.raises(ConfigError, match="disagree"):
        encode(first, Item("w", (1000,), "bfloat16", Encoding.XOR, first.locations + 1, first.values))


def test_equality_is_by_content() -> None:
    item = simple_item()
    assert item == simple_item()
    for other in (simple_item(count=4), simple_item(stride=8), simple_item(dtype="int32"), "w"):
        assert item != other
    with pytest.raises(TypeError):
        hash(item)


def _item(**changes: Any) -> Item:
    base = simple_item()
    fields = {name: getattr(base, name) for name in base.__slots__}
    return Item(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name of 0 bytes"),
        ({"name": "x" * 2000}, "name of 2000 bytes"),
        ({"name": "\ud800"}, "not valid UTF-8"),
        ({"shape": (1,) * 17}, "17 dims"),
        ({"shape": (-1, 5)}, "elements"),
        ({"shape": (2**40, 2**40)}, "elements"),
        ({"shape": (5,)}, "increase strictly within 0 .. 4"),
        ({"dtype": "complex64"}, "complex64"),
        ({"dtype": "float32"}, "values of dtype float32 must be uint32"),
        ({"encoding": "delta16"}, "encoding must be"),
        ({"positions": np.array([0, 1, 2], np.int16)}, "int64"),
        ({"positions": np.array([0, 1])}, "values"),
        ({"positions": np.array(1), "values": np.array(1, "<u2")}, "int64"),
        ({"positions": np.array([-1, 1, 2])}, "increase strictly"),
        ({"positions": np.array([1, 1, 2])}, "increase strictly"),
        ({"positions": np.array([3, 2, 5])}, "increase strictly"),
        ({"positions": np.array([0, -(2**63), 5])}, "increase strictly"),
        ({"target_digest": AuditDigest(2**61 - 1, 3)}, "target_digest"),
        ({"target_digest": AuditDigest(0, 1001)}, "target_digest"),
    ],
)
def test_items_that_cannot_be_are_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encode(_item(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": "xyz"}, "run must be 32"),
        ({"catalogue": "A" * 32}, "catalogue must be 32"),
        ({"attempt": AttemptId(-1, 0)}, "attempt.number"),
        ({"attempt": AttemptId(0, 2**63)}, "attempt.version"),
        ({"owner": 2**32}, "owner"),
        ({"sequence": -1}, "sequence"),
        ({"parent": -2}, "parent"),
        ({"codec": CodecConfig(name="best")}, "known: published, planes"),
        ({"codec": CodecConfig(zstd_level=23)}, "zstd_level"),
    ],
)
def test_identifiers_and_codec_are_checked(changes: dict[str, Any], message: str) -> None:
    base: dict[str, Any] = {"attempt": TAU, "owner": 0, "sequence": 0}
    with pytest.raises(ConfigError, match=message):
        encode_payload([], **(base | changes))


def test_the_level_changes_bytes_but_not_content() -> None:
    item = simple_item(count=100)
    for name in CODECS:
        codec = CodecConfig(name=name, zstd_level=19)
        data = encode_payload([item], attempt=TAU, owner=1, sequence=2, codec=codec)
        assert decode_payload(data).items == (item,)


@pytest.mark.parametrize("field", ["max_payload_bytes", "max_section_bytes", "max_items", "max_entries"])
def test_limits_apply_before_decompression(field: str) -> None:
    data = encode(simple_item("a"), simple_item("b"))
    with pytest.raises(PayloadError, match="limit"):
        decode_payload(data, limits=Limits(**{field: 1}))


@pytest.mark.parametrize("field", ["max_dims", "max_name_bytes"])
def test_limits_of_one_item(field: str) -> None:
    with pytest.raises(PayloadError):
        decode_payload(encode(simple_item("long")), limits=Limits(**{field: 1}))
    with pytest.raises(ConfigError, match=field):
        Limits(**{field: 0})


@pytest.mark.parametrize(
    "small", [{"max_items": 1}, {"max_entries": 5}, {"max_section_bytes": 10}, {"max_payload_bytes": 300}]
)
def test_what_does_not_fit_is_refused_before_it_is_sent(
    small: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcr.codec.payload.Limits", lambda: Limits(**small))
    with pytest.raises(ConfigError, match="send the items in several"):
        encode(simple_item("a"), simple_item("b"))


def test_bytes_that_are_not_in_a_row_are_read_all_the_same() -> None:
    data = encode(simple_item())
    spread = np.zeros((len(data), 2), np.uint8)
    spread[:, 0] = np.frombuffer(data, np.uint8)
    assert decode_payload(spread[:, 0].data) == decode_payload(data)


def test_no_memory_is_a_payload_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError

    data = encode(simple_item())
    monkeypatch.setattr("dcr.codec.unpack.decode_gaps", no_memory)
    with pytest.raises(PayloadError, match="does not fit in memory"):
        decode_payload(data)


def golden_items() -> tuple[Item, ...]:
    """What tests/data/payload_v1.bin holds; one item of every location type, encoding and width."""
    u2, u4 = np.dtype("<u2"), np.dtype("<u4")
    rows = [
        ("run", (4, 4), "bfloat16", Encoding.XOR, [3, 4, 5], np.array([1, 3, 0x8000], u2)),
        ("gaps1", (4, 100), "float32", Encoding.OVERWRITE, [0, 2, 257], np.array([0x7FC00001, 0, 1], u4)),
        ("gaps2", (1 << 20,), "bfloat16", Encoding.XOR, [1, 258, 65794], np.array([7, 8, 9], u2)),
        ("gaps4", (1 << 20,), "bool", Encoding.OVERWRITE, [0, 65537], np.array([0, 1], "u1")),
        ("gaps8", (1 << 40,), "int64", Encoding.XOR, [0, (1 << 32) + 1], np.array([1, 1 << 63], "<u8")),
        ("0-d \N{GREEK SMALL LETTER TAU}", (), "float8_e5m2", Encoding.OVERWRITE, [0], np.array([255], "u1")),
        ("empty", (0, 3), "float64", Encoding.XOR, [], np.array([], "<u8")),
    ]
    digest = AuditDigest(total=1234567890123, count=3)
    return tuple(
        Item(*row[:4], np.array(row[4], np.int64), row[5], digest if row[0] == "run" else None)  # type: ignore[arg-type]
        for row in rows
    )


GOLDEN_ID: dict[str, Any] = {
    "attempt": AttemptId(number=258, version=66),
    "owner": 3,
    "sequence": 4,
    "run": "000102030405060708090a0b0c0d0e0f",
    "parent": 65,
    "catalogue": "f0e0d0c0b0a090807060504030201000",
}


def test_old_payloads_stay_readable() -> None:
    payload = decode_payload((DATA / "payload_v1.bin").read_bytes())
    assert payload.items == golden_items()
    assert {field: getattr(payload, field) for field in GOLDEN_ID} == GOLDEN_ID


def test_bytes_are_pinned_outside_the_frames_and_inside_after_decompression() -> None:
    """Only what zstd makes of a section may differ between its releases."""
    golden = (DATA / "payload_v1.bin").read_bytes()
    assert golden[:16].hex() == "894443520d0a1a0a0100000003000000"
    assert golden[16:32].hex() == GOLDEN_ID["run"]
    assert golden[32:64].hex() == "4200000000000000020100000000000003000000040000004100000000000000"
    assert golden[64:80].hex() == GOLDEN_ID["catalogue"]
    assert golden[80:112].hex() == "07000000000000000e0000000000000025020000000000004a01000000000000"
    assert golden[128:144].hex() == "0100000000000000d901000000000000"
    again = encode_payload(golden_items(), **GOLDEN_ID, codec=PUBLISHED)
    assert again[:104] == golden[:104]
    assert split(again).sections == split(golden).sections
    assert again == golden or zstandard.ZSTD_VERSION != (1, 5, 7)


def test_wire_ids_are_pinned() -> None:
    assert known_dtypes().index("bfloat16") == 8
    assert list(GAP_DTYPES) == [1, 2, 4, 8]
