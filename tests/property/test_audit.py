"""Audit digests against plain big integers, and the laws that make them useful (DESIGN B6)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dcr.audit import (
    EMPTY,
    MODULUS,
    combine,
    digest_at,
    digest_map,
    digest_pair,
    digest_segments,
    digest_tensor,
    table_digest,
    term_key,
    update,
)
from dcr.errors import ConfigError
from dcr.indexmap import IndexMap
from dcr.model import AuditDigest, AuditTable, from_json, to_json

KEY = "000102030405060708090a0b0c0d0e0f"
Unsigned = NDArray[np.unsignedinteger]
WIDTHS = st.sampled_from([1, 2, 4, 8])
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def reference(key: str, name: str, indices: list[int], bits: Unsigned) -> AuditDigest:
    """DESIGN B6 word by word."""
    total = 0
    for index, value in zip(indices, bits.reshape(-1).tolist(), strict=True):
        lanes = [value] if bits.itemsize < 8 else [value & 0xFFFFFFFF, value >> 32]
        total += sum(term_key(key, name, index, lane) * (word + 1) for lane, word in enumerate(lanes))
    return AuditDigest(total % MODULUS, bits.size)


@st.composite
def arrays(draw: st.DrawFn, min_size: int = 0) -> Unsigned:
    width = draw(WIDTHS)
    top = (1 << (8 * width)) - 1
    value = st.one_of(st.integers(0, top), st.sampled_from([0, 1, top, top // 2 + 1]))
    return np.array(draw(st.lists(value, min_size=min_size, max_size=24)), dtype=f"<u{width}")


def positions(size: int) -> NDArray[np.int64]:
    return np.arange(size, dtype=np.int64)


@given(arrays(), NAMES)
def test_dense_and_scattered_follow_the_definition(bits: Unsigned, name: str) -> None:
    want = reference(KEY, name, list(range(bits.size)), bits)
    assert digest_tensor(KEY, name, bits) == want
    assert digest_at(KEY, name, positions(bits.size), bits) == want


@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("size", [4096, 4099, 70_000])
def test_compiled_and_numpy_paths_agree(width: int, size: int) -> None:
    rng = np.random.default_rng(size + width)
    bits = rng.integers(0, (1 << 8 * width) - 1, size=size, dtype=f"<u{width}", endpoint=True)
    bits[:7] = (1 << 8 * width) - 1
    where = rng.integers(0, 1 << 62, size=size, dtype=np.int64)
    dense = digest_tensor(KEY, "w", bits, force_numpy=True)
    assert digest_tensor(KEY, "w", bits) == dense
    assert digest_tensor(KEY, "w", bits[::-1][::-1]) == dense
    bits.flags.writeable = False
    assert digest_at(KEY, "w", positions(size), bits) == dense
    assert digest_at(KEY, "w", where, bits) == digest_at(KEY, "w", where, bits, force_numpy=True)
    other = bits[::-1].copy()
    expected = digest_at(KEY, "w", where, bits), digest_at(KEY, "w", where, other)
    assert digest_pair(KEY, "w", where, (bits, other)) == expected
    assert digest_pair(KEY, "w", where, (bits, other), force_numpy=True) == expected
    some = slice(0, 4096)
    assert digest_at(KEY, "w", where[some], bits[some]) == reference(
        KEY, "w", where[some].tolist(), bits[some]
    )


@pytest.mark.parametrize("width", [2, 8])
@pytest.mark.parametrize("size", [40, 5000])
def test_segments_are_digested_as_one_by_one(width: int, size: int) -> None:
    rng = np.random.default_rng(size + width)
    bits = rng.integers(0, (1 << 8 * width) - 1, size=size, dtype=f"<u{width}", endpoint=True)
    where = rng.integers(0, 1 << 62, size=size, dtype=np.int64)
    ends = np.array([0, 7, 7, size - 1, size], dtype=np.int64)
    names = ["a", "b", "c", "d", "a"]
    starts = [0, *ends[:-1].tolist()]
    assert digest_segments(KEY, names, ends, (where, bits)) == [
        digest_at(KEY, name, where[start:stop], bits[start:stop])
        for name, start, stop in zip(names, starts, ends.tolist(), strict=True)
    ]


@given(arrays(), st.data())
def test_parts_add_up_in_any_order(bits: Unsigned, data: st.DataObject) -> None:
    order = np.array(data.draw(st.permutations(range(bits.size))), dtype=np.int64)
    cuts = sorted(data.draw(st.lists(st.integers(0, bits.size), max_size=3)))
    parts = [digest_at(KEY, "w", part, bits[part]) for part in np.split(order, cuts)]
    whole = digest_tensor(KEY, "w", bits)
    assert combine(*parts) == combine(*reversed(parts)) == whole
    assert combine(whole, EMPTY) == whole
    assert combine() == EMPTY


@given(arrays(min_size=1), st.data())
def test_update_equals_recompute(bits: Unsigned, data: st.DataObject) -> None:
    where = np.array(data.draw(st.lists(st.integers(0, bits.size - 1), unique=True)), dtype=np.int64)
    new = bits.copy()
    top = (1 << 8 * bits.itemsize) - 1
    new[where] = [data.draw(st.integers(0, top)) for _ in where]
    before, after = digest_tensor(KEY, "w", bits), digest_tensor(KEY, "w", new)
    assert update(before, KEY, "w", where, bits[where], new[where]) == after
    assert update(after, KEY, "w", where, new[where], bits[where]) == before


@given(arrays(min_size=1), st.data())
def test_any_single_bit_changes_the_digest(bits: Unsigned, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, bits.size - 1))
    flipped = bits.copy()
    flipped[index] ^= bits.dtype.type(1 << data.draw(st.integers(0, 8 * bits.itemsize - 1)))
    assert digest_tensor(KEY, "w", flipped) != digest_tensor(KEY, "w", bits)


@given(arrays(min_size=2), NAMES, NAMES)
def test_key_name_and_position_matter(bits: Unsigned, one: str, other: str) -> None:
    here = digest_tensor(KEY, one, bits)
    if one != other:
        assert digest_tensor(KEY, other, bits) != here
    assert digest_tensor("f" * 32, one, bits) != here
    assert digest_at(KEY, one, positions(bits.size) + 1, bits) != here
    turned = np.roll(bits, 1)
    assert (digest_tensor(KEY, one, turned) == here) == bool((turned == bits).all())
    assert digest_tensor(KEY, one, bits[1:]) != here


def test_trailing_zeros_count() -> None:
    zeros = np.zeros(3, dtype="<u2")
    digests = [digest_tensor(KEY, "w", zeros[:n]) for n in range(4)]
    assert len({part.total for part in digests}) == 4
    assert [part.count for part in digests] == [0, 1, 2, 3]


@given(arrays(), st.integers(0, 5), st.integers(1, 4))
def test_maps_and_crops(bits: Unsigned, offset: int, columns: int) -> None:
    rows = bits.size // columns
    block = bits[: rows * columns]
    full = (rows + 1, columns + offset + 1)
    index_map = IndexMap.from_block((rows, columns), (1, offset), full)
    dense = np.full(full, 7, dtype=bits.dtype)
    dense[1:, offset : offset + columns] = block.reshape(rows, columns)
    near = digest_map(KEY, "w", index_map, block)
    where = index_map.to_far(positions(block.size))
    assert near == digest_at(KEY, "w", where, dense.reshape(-1)[where])
    resident = index_map.inverse()  # canonical -> local: everything outside the block is cropped
    assert digest_map(KEY, "w", resident, dense).count == block.size
    run = IndexMap.contiguous(bits.size, offset, bits.size + offset)
    assert digest_map(KEY, "w", run, bits) == digest_at(KEY, "w", positions(bits.size) + offset, bits)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_zero_dimensional_empty_and_strided(width: int) -> None:
    scalar = np.array(3, dtype=f"<u{width}")
    assert digest_tensor(KEY, "w", scalar) == reference(KEY, "w", [0], scalar)
    assert digest_tensor(KEY, "w", np.zeros((0, 4), dtype=f"<u{width}")) == EMPTY
    square = np.arange(9, dtype=f"<u{width}").reshape(3, 3)
    assert digest_tensor(KEY, "w", square.T) == reference(KEY, "w", list(range(9)), square.T.copy())


def test_malformed_input_is_refused() -> None:
    bits = np.zeros(2, dtype="<u2")
    for key in ("", "0" * 31, "0" * 33, "G" * 32, "A" * 32):
        with pytest.raises(ConfigError, match="audit_key"):
            digest_tensor(key, "w", bits)
    with pytest.raises(ConfigError, match="unsigned"):
        digest_tensor(KEY, "w", bits.astype(np.int16))
    with pytest.raises(ConfigError, match="both be"):
        digest_at(KEY, "w", positions(3), bits)
    with pytest.raises(ConfigError, match="both be"):
        digest_pair(KEY, "w", positions(3), (bits, bits))
    with pytest.raises(ConfigError, match="not bits of one tensor"):
        digest_pair(KEY, "w", positions(2), (bits, bits.astype("<u4")))


def test_table_digest_ignores_insertion_order_only() -> None:
    table: AuditTable = {"b": AuditDigest(MODULUS - 1, 2), "a": AuditDigest(1, 1)}
    assert from_json(AuditTable, to_json(table)) == table
    assert table_digest(table) == table_digest(dict(reversed(table.items())))
    assert table_digest({**table, "a": AuditDigest(1, 2)}) != table_digest(table)
    assert table_digest({"b": table["b"]}) != table_digest(table)
