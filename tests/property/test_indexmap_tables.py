"""Permutation tables, cuts, transposes and chains of index maps against an arange oracle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dcr.errors import ConfigError
from dcr.indexmap import Box, IndexMap, compose, from_rows, from_table

Table = NDArray[np.int64]


def everything(size: int) -> Table:
    return np.arange(size, dtype=np.int64)


@st.composite
def tables(draw: st.DrawFn, most: int = 40) -> tuple[Table, int]:
    """An injective partial table: a crop of a permutation, regular in blocks or not."""
    block = draw(st.integers(1, 4))
    count = draw(st.integers(0, most // block))
    spare = draw(st.integers(0, 3))
    order = draw(st.permutations(range(count + spare)))[:count]
    lost = draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=3))
    rows = np.array([-1 if i in lost else row for i, row in enumerate(order)], dtype=np.int64)
    table = np.where(rows[:, None] < 0, -1, rows[:, None] * block + np.arange(block)).reshape(-1)
    return table.astype(np.int64), (count + spare) * block


@given(tables(), st.data())
def test_a_table_is_its_map(drawn: tuple[Table, int], data: st.DataObject) -> None:
    table, size = drawn
    got = from_table(table, size)
    np.testing.assert_array_equal(got.to_far(everything(table.size)), table)
    some = np.array(sorted(data.draw(st.sets(st.integers(0, max(table.size - 1, 0)), max_size=20))), np.int64)
    some = some[some < table.size]
    far, order = got.to_far_sorted(some)
    np.testing.assert_array_equal(far, np.sort(table[some][table[some] >= 0]))
    np.testing.assert_array_equal(table[some if order is None else some[order]], far)
    back = np.full(size, -1, dtype=np.int64)
    back[table[table >= 0]] = np.flatnonzero(table >= 0)
    np.testing.assert_array_equal(got.inverse().to_far(everything(size)), back)


@given(st.permutations(range(30)), st.integers(1, 3), st.data())
def test_a_table_of_many_boxes_is_searched(order: list[int], width: int, data: st.DataObject) -> None:
    rows = np.array(order, dtype=np.int64)
    lost = sorted(data.draw(st.sets(st.integers(0, 29), max_size=5)))
    rows[lost] = -1
    got = from_rows(rows, width, (30, width))
    want = np.where(rows[:, None] < 0, -1, rows[:, None] * width + np.arange(width)).reshape(-1)
    np.testing.assert_array_equal(got.to_far(everything(want.size)), want)


def test_many_boxes_with_gaps_between_their_elements_are_right_too() -> None:
    boxes = tuple(Box((3,), i, (20,), 100 - 10 * i, (2,)) for i in range(9))
    got = IndexMap(boxes, 60, 120)
    want = np.full(60, -1, dtype=np.int64)
    for i in range(9):
        want[[i, i + 20, i + 40]] = [100 - 10 * i, 102 - 10 * i, 104 - 10 * i]
    np.testing.assert_array_equal(got.to_far(everything(60)), want)


@given(tables(24), st.integers(0, 3), st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_rows_land_in_a_matrix(
    drawn: tuple[Table, int], width: int, column: int, spare: int, transposed: bool
) -> None:
    rows, num_rows = drawn
    columns = column + width + spare
    space = everything(num_rows * columns)
    matrix = space.reshape(columns, num_rows).T if transposed else space.reshape(num_rows, columns)
    want = np.full((rows.size, width), -1, dtype=np.int64)
    kept = rows >= 0
    want[kept] = matrix[rows[kept], column : column + width]
    got = from_rows(rows, width, (num_rows, columns), column=column, transposed=transposed)
    np.testing.assert_array_equal(got.to_far(everything(want.size)), want.reshape(-1))
    assert (got.src_size, got.dst_size, got.is_injective) == (want.size, space.size, True)


@given(st.lists(st.integers(0, 4), max_size=4), st.data())
def test_permuted_is_numpys_transpose(shape: list[int], data: st.DataObject) -> None:
    dims = data.draw(st.permutations(range(len(shape))))
    size = int(np.prod(shape, dtype=np.int64))
    got = IndexMap.permuted(tuple(shape), tuple(dims))
    near = everything(size).reshape(shape).transpose(dims).reshape(-1)
    np.testing.assert_array_equal(got.to_near(everything(size)), near)
    assert got.is_onto


@st.composite
def blocks(draw: st.DrawFn, rank: int) -> IndexMap:
    full = [draw(st.integers(1, 5)) for _ in range(rank)]
    offsets = [draw(st.integers(0, size - 1)) for size in full]
    local = [draw(st.integers(0, size - off)) for size, off in zip(full, offsets, strict=True)]
    return IndexMap.from_block(tuple(local), tuple(offsets), tuple(full))


any_map = st.one_of(
    tables().map(lambda drawn: from_table(*drawn)), st.integers(0, 4).flatmap(lambda rank: blocks(rank))
)


@given(any_map, st.data())
def test_restrict_and_crop_cut_the_table(whole: IndexMap, data: st.DataObject) -> None:
    table = whole.to_far(everything(whole.src_size))
    ends = sorted(data.draw(st.tuples(*[st.integers(0, whole.src_size)] * 2)))
    part = whole.restrict(*ends)
    np.testing.assert_array_equal(part.to_far(everything(part.src_size)), table[slice(*ends)])
    first, last = sorted(data.draw(st.tuples(*[st.integers(0, whole.dst_size)] * 2)))
    cropped = whole.crop(first, last).to_far(everything(whole.src_size))
    np.testing.assert_array_equal(cropped, np.where((table >= first) & (table < last), table, -1))


@given(st.permutations(range(6)), st.integers(1, 4), st.integers(1, 3), st.data())
def test_chains_of_blocks_are_chains_of_tables(
    order: list[int], block: int, factor: int, data: st.DataObject
) -> None:
    rows = np.array(order, dtype=np.int64)
    lost = data.draw(st.integers(0, 5))
    rows[lost] = -1
    first = from_rows(rows, block * factor, (6, block * factor))
    again = np.array(data.draw(st.permutations(range(6 * factor))), dtype=np.int64)
    second = from_rows(again, block, (6 * factor, block))
    mid = first.to_far(everything(first.src_size))
    want = np.where(mid >= 0, second.to_far(np.maximum(mid, 0)), -1)
    got = compose(first, second)
    np.testing.assert_array_equal(got.to_far(everything(first.src_size)), want)
    assert (got.src_size, got.dst_size) == (first.src_size, second.dst_size)


def test_a_chain_of_rows_is_enumerated_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    to_far = IndexMap.to_far

    def counting(self: IndexMap, indices: Table) -> Table:
        sizes.append(indices.size)
        return to_far(self, indices)

    monkeypatch.setattr(IndexMap, "to_far", counting)
    rows = from_rows(everything(8)[::-1].copy(), 4096, (8, 4096))
    chained = compose(rows, IndexMap.from_block((8, 4096), (2, 0), (16, 4096)))
    assert max(sizes) == 8
    assert to_far(chained, np.array([0, 4096], dtype=np.int64)).tolist() == [9 * 4096, 8 * 4096]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: from_rows(everything(3), 2, (2, 2)), "leave a matrix"),
        (lambda: from_rows(everything(2), 2, (2, 3), column=2), "leave a matrix"),
        (lambda: IndexMap.permuted((2, 3), (0, 0)), "do not permute"),
        (lambda: IndexMap.identity(4).restrict(2, 5), "leaves a source space"),
        (lambda: IndexMap.identity(4).crop(3, 2), "leaves a space"),
    ],
    ids=["rows", "columns", "dims", "restrict", "crop"],
)
def test_mistakes_are_refused(make: object, reason: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=reason):
        make()
