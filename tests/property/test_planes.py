"""The coding ``planes``: every location type and layout, equal bytes from both engines, every edge."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.location_items import (
    HUGE,
    bursts,
    every_kind,
    every_layout,
    item,
    repeated,
    spread,
    strided,
)
from tests.property.payload_items import identities, payload_items

from dcr.codec import Item, Limits, decode_payload, encode_payload
from dcr.codec.engines import EngineName
from dcr.codec.inspect import inspect_payload
from dcr.codec.kinds import SECTION_KINDS, Kind, Layout, kind_name, location_name
from dcr.codec.payload import read_rows
from dcr.config import CodecConfig
from dcr.model import AttemptId, Encoding, bits_dtype, known_dtypes
from dcr.testing.payload_surgery import split

DATA = Path(__file__).parent.parent / "data"
PLANES = CodecConfig(name="planes")
ENGINES: tuple[EngineName, ...] = ("numpy", "compiled")
ID: dict[str, Any] = {
    "attempt": AttemptId(number=258, version=66),
    "owner": 3,
    "sequence": 4,
    "run": "0f" * 16,
}


def encode(*items: Item) -> bytes:
    """Both engines give the same bytes, and read them alike."""
    data = encode_payload(items, **ID, codec=PLANES, engine="numpy")
    assert encode_payload(items, **ID, codec=PLANES, engine="compiled") == data
    for engine in ENGINES:
        assert decode_payload(data, engine=engine).items == items
    return data


def kinds(*items: Item) -> list[str]:
    return [found.location_kind.rstrip("0123456789") for found in inspect_payload(encode(*items)).items]


@given(payload_items, identities)
def test_both_engines_give_the_same_bytes_and_items(items: list[Item], identity: dict[str, Any]) -> None:
    first, second = (encode_payload(items, **identity, codec=PLANES, engine=engine) for engine in ENGINES)
    assert first == second
    for engine in ENGINES:
        assert list(decode_payload(first, engine=engine).items) == items


@pytest.mark.parametrize("kind", every_kind())
def test_every_location_type_is_taken_where_it_fits(kind: str) -> None:
    found = inspect_payload(encode(every_kind()[kind])).items[0].location_kind
    assert found == kind or (kind in ("rice", "blocks", "strips") and found.startswith(kind))


def test_every_layout_is_taken_where_it_fits() -> None:
    rows = read_rows(memoryview(encode(*every_layout(), *every_kind().values())), Limits())[1]
    by_name = {row.name: row.layout for row in rows}
    assert by_name["words"] is Layout.WORDS
    assert by_name["broad"] is by_name["float32 xor"] is by_name["float8_e4m3fn overwrite"] is Layout.PLANES
    assert by_name["rice"] is by_name["blocks"] is Layout.PAIRS


@pytest.mark.parametrize("dtype", known_dtypes())
@pytest.mark.parametrize("kind", every_kind())
def test_every_dtype_in_every_location_type(dtype: str, kind: str) -> None:
    where = every_kind()[kind].locations[:64]
    largest = np.iinfo(bits_dtype(dtype)).max
    values = np.resize(np.array([0, 1, largest, largest // 3], bits_dtype(dtype)), len(where))
    ways = [way for way in Encoding if way is not Encoding.DELTA16 or values.itemsize == 2]
    for way in ways:
        encode(item("w", where, dtype=dtype, encoding=way, values=values))


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 65_535, 65_536])
def test_sizes(count: int) -> None:
    for where in (spread(count, 0.02), np.arange(count), bursts(count // 16 + 1, 640)[:count]):
        encode(item("w", where))


@pytest.mark.parametrize("size", [1, 65_535, 65_536, 2**31 + 1, HUGE])
def test_the_last_element_of_a_tensor(size: int) -> None:
    for where in ({size - 1}, {0, size - 1}, {0, size // 2, size - 1}, set(range(max(0, size - 70), size))):
        encode(item("w", sorted(where), size=size))


@pytest.mark.parametrize(
    "gap", [0, 1, 62, 63, 64, 254, 255, 256, 510, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**62]
)
@pytest.mark.parametrize("first", [0, 64, 2**40 + 1])
@pytest.mark.parametrize("more", [[1], [1, 3], list(range(3, 400, 3)), list(range(1, 400, 9))])
def test_gaps_across_every_threshold(gap: int, first: int, more: list[int]) -> None:
    where = first + np.cumsum([0, *more])
    encode(item("before", [*where, int(where[-1]) + 1 + gap]), item("after", [first, *(where + gap + 1)]))


@pytest.mark.parametrize("at", [65_534, 65_535, 65_536, 2**32 - 1, 2**32])
@pytest.mark.parametrize("kind", ["escape8", "planes16", "planes32"])
def test_one_wide_gap_among_gaps_as_bytes(kind: str, at: int) -> None:
    """No sample needs to show it."""
    where = every_kind()[kind].locations
    encode(item("w", np.concatenate([where, [where[-1] + 1 + at], where + where[-1] + at + 9])))


def test_one_far_entry_among_many_costs_little() -> None:
    near = spread(50_000, 0.2)
    alone, far = (len(encode(item("w", where))) for where in (near, [*near, 2**60]))
    assert far < 2.2 * alone


def test_an_item_far_inside_a_tensor_costs_as_much_as_at_its_start() -> None:
    """Also one so regular that its types are tried whole, by either engine."""
    regular = [np.cumsum(np.resize([1, 300, 1, 300, 7], size)) for size in (2100, 1 << 15)]
    even = [spread(3000, 0.01), bursts(30, 6400), repeated([7, 1000], 5000), strided(0, 5, 64, 500)]
    for where in (*even, *regular):
        start, far = (len(encode(item("w", where + offset))) for offset in (0, 2**50 + 128))
        assert far <= start + 40


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 65, 2**40])
def test_a_column_shard_that_changed_altogether_costs_nothing(offset: int) -> None:
    assert kinds(item("w", strided(offset, 64, 1024, 200))) == ["stride"]
    assert kinds(item("w", strided(offset, 1, 3, 9))) == ["stride"]
    for broken in (strided(offset, 5, 9, 20)[:-1], np.delete(strided(offset, 5, 9, 20), 50)):
        assert kinds(item("w", broken)) != ["stride"]


def test_items_share_sections_without_touching_one_another() -> None:
    """Whole, single and empty items between items of every type."""
    rows = [*every_kind().values(), *every_layout()]
    fillers = [item("none", []), item("one", [5]), item("e", [], dtype="float32")]
    data = encode(*rows, *fillers, *(Item(f"{row.name}+", *_rest(row)) for row in reversed(rows)))
    # differences are in pairs or in planes, for all items together but the whole ones
    assert set(split(data).sections) == SECTION_KINDS


def _rest(row: Item) -> tuple[Any, ...]:
    return row.shape, row.dtype, row.encoding, row.locations, row.values, row.target_digest


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=50), st.booleans())
def test_every_difference_in_pairs_and_planes(values: list[int], small: bool) -> None:
    """Many small ones make pairs the smaller layout."""
    bits = np.array(values + ([1, 65535] * 500 if small else []), "<u2")
    encode(item("w", spread(len(bits), 0.1), values=bits, encoding=Encoding.DELTA16))


def test_the_same_input_gives_the_same_bytes() -> None:
    assert encode(*every_kind().values()) == encode(*every_kind().values())


def test_arrays_with_gaps_in_memory_and_read_only_ones_are_taken() -> None:
    base = every_kind()["rice"]
    twice = np.repeat(base.locations, 2)[::2], np.repeat(base.values, 2)[::2]
    twice[1].flags.writeable = False
    data = encode(Item("rice", base.shape, base.dtype, base.encoding, *twice))
    assert data == encode(base)


@pytest.mark.parametrize("noise", ["normal", "constant", "rows", "random", "ramp"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int64", "uint8"])
def test_a_whole_tensor_is_never_larger_than_its_zstd_frame_and_one_per_cent(noise: str, dtype: str) -> None:
    import zstandard

    values = dense(noise, bits_dtype(dtype))
    whole = item(
        "w", range(len(values)), size=len(values), dtype=dtype, encoding=Encoding.OVERWRITE, values=values
    )
    plain = zstandard.ZstdCompressor(level=1).compress(values.tobytes())
    assert len(encode(whole)) <= 1.01 * len(plain) + 600


def dense(noise: str, bits: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """300,000 elements of every sort: what a table of sines, an embedding or an index may hold."""
    draw, count = np.random.default_rng(5), 300_000
    if noise == "normal":
        top = (draw.standard_normal(count, np.float32) * 0.02).view(np.uint32) >> (
            32 - 8 * min(bits.itemsize, 4)
        )
        return top.astype(bits)
    if noise == "rows":
        return np.resize(draw.integers(0, 250, 5000).astype(bits) * bits.type(1), count)
    if noise == "random":
        return np.frombuffer(draw.bytes(count * bits.itemsize), bits)
    return np.zeros(count, bits) if noise == "constant" else np.arange(count).astype(bits)


def golden_items() -> tuple[Item, ...]:
    """What tests/data/payload_v1_planes.bin holds; strips are younger."""
    rows = (row for kind, row in every_kind().items() if kind != "strips")
    return (*rows, *every_layout(), item("none", []), item("one", [2**62]))


def test_old_payloads_stay_readable() -> None:
    golden = (DATA / "payload_v1_planes.bin").read_bytes()
    for engine in ENGINES:
        assert decode_payload(golden, engine=engine).items == golden_items()
    assert split(encode(*golden_items())).sections == split(golden).sections


def test_wire_ids_are_pinned() -> None:
    assert {kind_name(kind): kind for kind in SECTION_KINDS if kind > 255} | PINNED == {
        kind_name(kind): int(kind) for kind in SECTION_KINDS if kind > 255
    }
    assert [location_name(number) for number in (0, 1, 8, 16, 17, 18, 20, 64, 126, 128, 190)] == [
        "run", "gap8", "gap64", "stride", "escape8", "planes16", "planes32", "rice0", "rice62", "blocks0",
        "blocks62",
    ]  # fmt: skip
    assert [*Kind][:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [layout.value for layout in Layout] == [0, 1, 2]


PINNED = {"XOR_8_BYTE0": 0x110, "XOR_64_BYTE7": 0x187, "OVERWRITE_32_BYTE3": 0x243, "DELTA16_16_BYTE1": 0x321,
          "DELTA16_PAIRS": 0x301, "DELTA16_EXCESS_BYTE0": 0x302, "DELTA16_EXCESS_BYTE1": 0x303}  # fmt: skip
