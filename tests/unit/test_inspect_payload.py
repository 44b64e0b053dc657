"""Figures of a payload against numbers computed by hand."""

from math import log2

import numpy as np
import pytest
from tests.property.location_items import every_kind, every_layout, item, spread

from dcr.codec import Item, encode_payload
from dcr.codec.inspect import inspect_payload, location_bound_bits, total, value_bound_bits
from dcr.config import CodecConfig
from dcr.errors import PayloadError
from dcr.model import AttemptId, Encoding

PUBLISHED = CodecConfig(name="published")


def _item(name: str, num_elements: int, where: list[int], values: list[int], dtype: str = "bfloat16") -> Item:
    width = {"bfloat16": "<u2", "float32": "<u4"}[dtype]
    return Item(
        name, (num_elements,), dtype, Encoding.XOR, np.array(where, np.int64), np.array(values, width)
    )


def _payload() -> bytes:
    items = [
        _item("quarter", 16, [0, 3, 7, 12], [1, 1, 2, 4]),  # gaps 0 2 3 4
        _item("far", 4096, [0, 4095], [9, 9], "float32"),  # the gap of 4094 needs two bytes
        _item("run", 8, [2, 3, 4, 5], [7, 7, 7, 7]),
        _item("none", 8, [], []),
    ]
    return encode_payload(items, attempt=AttemptId(7, 3), owner=1, sequence=2, codec=PUBLISHED)


def test_counts_kinds_and_raw_bytes() -> None:
    found = inspect_payload(_payload())
    assert [item.location_kind for item in found.items] == ["gap8", "gap16", "run", "run"]
    assert [item.locations.raw_bytes for item in found.items] == [4, 4, 0, 0]
    assert [item.values.raw_bytes for item in found.items] == [8, 8, 8, 0]
    assert [item.changed_fraction for item in found.items] == [0.25, 2 / 4096, 0.5, 0.0]
    assert [item.encoding for item in found.items] == ["xor"] * 4
    assert (found.head.identity.owner, found.head.identity.parent) == (1, 2)


@pytest.mark.parametrize(
    ("encoding", "changed"), [(Encoding.XOR, 2), (Encoding.DELTA16, 2), (Encoding.OVERWRITE, 8)]
)
def test_of_a_shard_that_goes_whole_differences_tell_what_changed(encoding: Encoding, changed: int) -> None:
    values = np.array([0, 5, 0, 0, 0, 9, 0, 0], "<u2")
    whole = Item("w", (16,), "bfloat16", encoding, np.arange(8, dtype=np.int64), values)
    (found,) = inspect_payload(encode_payload([whole], attempt=AttemptId(7, 3), owner=1, sequence=2)).items
    assert (found.num_entries, found.num_changed, found.changed_fraction) == (8, changed, changed / 16)


def _planes() -> bytes:
    rows = [*every_kind().values(), *every_layout(), item("none", [])]
    return encode_payload(rows, attempt=AttemptId(7, 3), owner=1, sequence=2, codec=CodecConfig("planes"))


def test_raw_bytes_of_every_location_type_and_layout_are_exact() -> None:
    found = {row.name: row for row in inspect_payload(_planes()).items}
    # 5000 gaps of 1 or more bytes; 100 entries in a run and as 20 blocks with two numbers
    assert [found[name].locations.raw_bytes for name in ("run", "stride", "planes16", "planes32")] == [
        0, 16, 10_000, 20_000,
    ]  # fmt: skip
    # 201 unary numbers and 201 * k bits; blocks: a number of 8 bytes, 10 masks, and the bits of 10 numbers
    low_bits = int(found["rice"].location_kind.removeprefix("rice"))
    assert found["rice"].locations.raw_bytes > 201 / 8 + 201 * low_bits / 8
    assert 8 + 80 + 10 / 8 < found["blocks"].locations.raw_bytes < 8 + 80 + 20
    # half a byte a value, and two more for each eleventh, which is large
    assert found["rice"].values.raw_bytes == 101 + 2 * 19
    assert found["float32 xor"].values.raw_bytes == 4 * 33
    assert found["words"].values.raw_bytes == 2 * 4096
    assert found["none"].values.raw_bytes == found["none"].locations.raw_bytes == 0


def test_bytes_that_are_stored_as_they_are_are_attributed_exactly() -> None:
    """The low bits of even changes cannot be compressed; what else they have is known."""
    rows = [
        item(name, spread(20_000, 0.001, seed), values=np.ones(20_000, "<u2"))
        for seed, name in enumerate("ab")
    ]
    data = encode_payload(rows, attempt=AttemptId(7, 3), owner=1, sequence=2, codec=CodecConfig("planes"))
    for row in inspect_payload(data).items:
        assert row.locations.stored_bytes == pytest.approx(row.locations.raw_bytes, rel=0.01)


@pytest.mark.parametrize("make", ["_payload", "_planes"])
def test_every_byte_of_the_payload_is_attributed(make: str) -> None:
    data: bytes = globals()[make]()
    found = inspect_payload(data)
    parts = [coding for item in found.items for coding in (item.locations, item.values)]
    assert found.num_bytes == len(data)
    assert found.frame_bytes == 128 + 24 * found.head.num_sections
    assert total([found.table, *parts]).stored_bytes + found.frame_bytes == pytest.approx(len(data))


def test_a_section_is_shared_by_what_its_byte_frequencies_cost() -> None:
    """14 of 24 bytes are 0; of the rest 2 are 1, one is 2, one is 4, 2 are 9 and 4 are 7."""
    first, second, third, none = (item.values.stored_bytes for item in inspect_payload(_payload()).items)
    bits = {byte: -log2(count / 24) for byte, count in {0: 14, 1: 2, 2: 1, 4: 1, 9: 2, 7: 4}.items()}
    cost = [
        4 * bits[0] + 2 * bits[1] + bits[2] + bits[4],
        6 * bits[0] + 2 * bits[9],
        4 * bits[0] + 4 * bits[7],
    ]
    assert [first / third, second / third] == pytest.approx([cost[0] / cost[2], cost[1] / cost[2]])
    assert none == 0


def test_bounds_computed_by_hand() -> None:
    # H(1/4) = 2 - 0.75 log2 3 = 0.811278...; 16 elements
    assert location_bound_bits(4, 16) == pytest.approx(16 * 0.8112781244591328)
    # frequencies 1/2, 1/4, 1/4: 1.5 bits each of 4 values
    assert value_bound_bits(np.array([1, 1, 2, 4], np.uint16)) == pytest.approx(6.0)
    first, _, run, _ = inspect_payload(_payload()).items
    # locations 0, 3, 7, 12: 4 of 13 elements; H(4/13) = 0.890492
    assert first.locations.bound_bits == pytest.approx(13 * 0.8904916402194913)
    assert first.values.bound_bits == pytest.approx(6.0)
    assert (run.locations.bound_bits, run.values.bound_bits) == (0.0, 0.0)


@pytest.mark.parametrize(("entries", "elements"), [(0, 0), (0, 5), (5, 5), (1, 1)])
def test_nothing_or_everything_needs_no_locations(entries: int, elements: int) -> None:
    assert location_bound_bits(entries, elements) == 0.0


def test_equal_or_no_values_need_no_bits() -> None:
    for values in (np.array([], np.uint8), np.full(9, 3, np.uint8)):
        assert str(value_bound_bits(values)) == "0.0"


def test_the_bound_holds_for_random_data() -> None:
    """What zstd makes of random values is never below their entropy (a sanity check of units)."""
    rng = np.random.default_rng(3)
    values = rng.integers(0, 1 << 16, 20_000, np.uint16)
    where = np.sort(rng.choice(2_000_000, 20_000, replace=False)).astype(np.int64)
    item = Item("x", (2_000_000,), "bfloat16", Encoding.XOR, where, values)
    found = inspect_payload(encode_payload([item], attempt=AttemptId(1, 1), owner=0, sequence=0)).items[0]
    assert 8 * found.locations.stored_bytes > found.locations.bound_bits > 7 * 20_000
    assert 8 * found.values.stored_bytes > found.values.bound_bits > 13 * 20_000


@pytest.mark.parametrize("at", [0, 20, 140, 210, -1])
def test_any_flipped_byte_is_refused(at: int) -> None:
    data = bytearray(_payload())
    data[at] ^= 1
    with pytest.raises(PayloadError):
        inspect_payload(bytes(data))
