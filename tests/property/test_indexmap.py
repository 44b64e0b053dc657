"""Index maps against an arange oracle: every map is compared with the table of its pairs."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from dcr.errors import ConfigError
from dcr.indexmap import Box, IndexMap, boxes_from_pairs, compose

Table = NDArray[np.int64]


def everything(size: int) -> Table:
    return np.arange(size, dtype=np.int64)


def table_of_boxes(boxes: tuple[Box, ...], src_size: int) -> Table:
    """Destination of every source index, by the definition of a box; -1 where cropped."""
    table = np.full(src_size, -1, dtype=np.int64)
    for box in boxes:
        for index in np.ndindex(*box.shape):
            src = box.src_offset + sum(i * s for i, s in zip(index, box.src_strides, strict=True))
            dst = box.dst_offset + sum(i * s for i, s in zip(index, box.dst_strides, strict=True))
            table[src] = dst
    return table


@st.composite
def blocks(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    full = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    offsets = tuple(draw(st.integers(0, size)) for size in full)
    local = tuple(draw(st.integers(0, size - off)) for size, off in zip(full, offsets, strict=True))
    return local, offsets, full


@st.composite
def views(draw: st.DrawFn) -> tuple[Table, Table]:
    """Two equally shaped regular views of two spaces: transposes, steps and crops."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))

    def view() -> Table:
        steps = [draw(st.integers(1, 2)) for _ in shape]
        full = [size * step + draw(st.integers(0, 2)) for size, step in zip(shape, steps, strict=True)]
        perm = draw(st.permutations(range(len(shape))))
        space = everything(int(np.prod(full))).reshape([full[i] for i in perm])
        cut = tuple(slice(0, shape[i] * steps[i], steps[i]) for i in perm)
        return space[cut].transpose(np.argsort(perm))

    return view(), view()


def strides_of(view: Table) -> tuple[int, ...]:
    origin = view[(0,) * view.ndim]
    return tuple(
        int(view[tuple(int(d == axis) for d in range(view.ndim))] - origin) if view.shape[axis] > 1 else 1
        for axis in range(view.ndim)
    )


@given(blocks())
def test_from_block_is_the_block_of_an_arange(
    block: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]],
) -> None:
    local, offsets, full = block
    got = IndexMap.from_block(local, offsets, full)
    size = int(np.prod(full, dtype=np.int64))
    cut = tuple(slice(off, off + n) for off, n in zip(offsets, local, strict=True))
    want = everything(size).reshape(full)[cut].reshape(-1)
    np.testing.assert_array_equal(got.to_far(everything(want.size)), want)
    assert (got.src_size, got.dst_size) == (want.size, size)
    assert got.is_complete
    assert got.is_injective
    assert got.is_onto == (want.size == size)
    near = got.to_near(everything(size))
    np.testing.assert_array_equal(near[want], everything(want.size))
    assert int((near >= 0).sum()) == want.size


@given(st.integers(0, 7), st.integers(0, 7), st.integers(1, 6), st.integers(0, 6))
def test_an_axis_0_shard_is_an_add(offset: int, rows: int, columns: int, spare: int) -> None:
    shard = IndexMap.from_block((rows, columns), (offset, 0), (offset + rows + spare, columns))
    assert shard.shift == (offset * columns if rows else 0)
    assert shard == IndexMap.contiguous(rows * columns, offset * columns * bool(rows), shard.dst_size)


@given(views(), st.data())
def test_strided_boxes_follow_the_oracle(pair: tuple[Table, Table], data: st.DataObject) -> None:
    src, dst = pair
    box = Box(src.shape, int(src.flat[0]), strides_of(src), int(dst.flat[0]), strides_of(dst))
    sizes = int(src.max()) + 1, int(dst.max()) + 1
    got = IndexMap((box,), *sizes)
    table = np.full(sizes[0], -1, dtype=np.int64)
    table[src.reshape(-1)] = dst.reshape(-1)
    np.testing.assert_array_equal(got.to_far(everything(sizes[0])), table)
    back = np.full(sizes[1], -1, dtype=np.int64)
    back[dst.reshape(-1)] = src.reshape(-1)
    np.testing.assert_array_equal(got.to_near(everything(sizes[1])), back)
    assert got.inverse().inverse() == got
    some = np.array(data.draw(st.lists(st.integers(0, sizes[0] - 1), max_size=12)), dtype=np.int64)
    far, order = got.to_far_sorted(some)
    kept = table[some][table[some] >= 0]
    np.testing.assert_array_equal(far, np.sort(kept))
    np.testing.assert_array_equal(table[some if order is None else some[order]], far)


@given(st.lists(st.integers(-1, 9), max_size=24))
def test_boxes_from_pairs_hold_exactly_the_pairs(destinations: list[int]) -> None:
    table = np.array(destinations, dtype=np.int64)
    src = np.flatnonzero(table >= 0).astype(np.int64)
    boxes = boxes_from_pairs(src, table[src])
    np.testing.assert_array_equal(table_of_boxes(boxes, table.size), table)
    got = IndexMap(boxes, table.size, 10)
    np.testing.assert_array_equal(got.to_far(everything(table.size)), table)
    kept = table[table >= 0]
    assert got.is_injective == (np.unique(kept).size == kept.size)
    assert got.is_complete == bool((table >= 0).all())


@given(views())
def test_a_regular_view_is_found_as_one_box(pair: tuple[Table, Table]) -> None:
    src, _ = pair
    flat = np.sort(src.reshape(-1))
    boxes = boxes_from_pairs(flat, everything(flat.size))
    assert len(boxes) <= max(1, src.shape[0] * src.shape[-1])
    rows = IndexMap.from_block((6, 3), (1, 2), (8, 7)).to_far(everything(18))
    assert len(boxes_from_pairs(everything(18), rows)) == 1


@given(st.lists(st.integers(-1, 9), max_size=16), st.lists(st.integers(-1, 7), min_size=10, max_size=10))
def test_compose_is_function_composition(one: list[int], two: list[int]) -> None:
    tables = [np.array(t, dtype=np.int64) for t in (one, two)]
    maps = []
    for table, size in zip(tables, (10, 8), strict=True):
        src = np.flatnonzero(table >= 0).astype(np.int64)
        maps.append(IndexMap(boxes_from_pairs(src, table[src]), table.size, size))
    want = np.where(tables[0] >= 0, tables[1][tables[0]], -1)
    np.testing.assert_array_equal(compose(*maps).to_far(everything(want.size)), want)


def test_compose_of_runs_stays_a_run() -> None:
    chained = compose(IndexMap.contiguous(3, 2, 9), IndexMap.contiguous(9, 5, 20))
    assert chained == IndexMap.contiguous(3, 7, 20)
    with pytest.raises(ConfigError, match="cannot chain"):
        compose(IndexMap.identity(3), IndexMap.identity(4))


def test_interleaves_are_told_apart_without_enumeration(monkeypatch: pytest.MonkeyPatch) -> None:
    """Q, K and V of a fused projection share their range; the comb argument must settle it."""
    monkeypatch.setattr("dcr.indexmap.map.members", lambda *_: pytest.fail("enumerated"))
    group, rows = 6 * 64, 8
    parts = ((0, 4), (4, 1), (5, 1))
    boxes = tuple(
        Box((rows, n * 64), at * 64, (group, 1), i * 10_000, (n * 64, 1)) for i, (at, n) in enumerate(parts)
    )
    fused = IndexMap(boxes, rows * group, 30_000)
    assert fused.is_complete
    assert fused.is_injective


def test_zero_dimensional_and_empty_tensors() -> None:
    scalar = IndexMap.from_block((), (), ())
    assert scalar == IndexMap.identity(1)
    assert scalar.to_far(everything(1)).tolist() == [0]
    empty = IndexMap.from_block((0, 4), (3, 0), (3, 4))
    assert (empty.src_size, empty.dst_size, empty.num_mapped, empty.shift) == (0, 12, 0, 0)
    assert empty.to_far(everything(0)).shape == (0,)
    assert empty.to_near(everything(12)).tolist() == [-1] * 12


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        (lambda: Box((2,), 0, (1, 1), 0, (1,)), "differ in length"),
        (lambda: Box((-1,), 0, (1,), 0, (1,)), "must not be negative"),
        (lambda: Box((2,), -1, (1,), 0, (1,)), "must not be negative"),
        (lambda: Box((2,), 0, (0,), 0, (1,)), "src_strides overlap"),
        (lambda: Box((2, 3), 0, (3, 1), 0, (2, 1)), "dst_strides overlap"),
        (lambda: Box((2,), 0, (1,), 0, (-1,)), "dst_strides overlap"),
        (lambda: IndexMap((Box((3,), 0, (1,), 0, (1,)),), 2, 3), "leaves its spaces"),
        (lambda: IndexMap((Box((3,), 0, (1,), 2, (1,)),), 3, 4), "leaves its spaces"),
        (lambda: IndexMap((), -1, 0), "must not be negative"),
        (lambda: IndexMap.from_block((2,), (3,), (4,)), "leaves the tensor"),
        (lambda: IndexMap.from_block((2,), (0, 0), (4,)), "lengths differ"),
        (lambda: IndexMap((Box((3,), 0, (2,), 0, (1,)), Box((2,), 1, (3,), 5, (1,))), 9, 9), "same source"),
    ],
    ids=[f"malformed-{n}" for n in range(12)],
)
def test_malformed_maps_are_refused(box: object, reason: str) -> None:
    assert callable(box)
    with pytest.raises(ConfigError, match=reason):
        box()


@given(st.integers(2, 5), st.integers(2, 5))
def test_shared_destinations_are_not_injective(count: int, step: int) -> None:
    assume(count > step)
    boxes = Box((count,), 0, (1,), 0, (step,)), Box((step,), count, (1,), step, (1,))
    both = IndexMap(boxes, count + step, count * step + step)
    want = len({i * step for i in range(count)} & set(range(step, 2 * step))) == 0
    assert both.is_injective == want
    with pytest.raises(ConfigError, match="no inverse"):
        both.inverse()
