"""Parts of a tensor between ranks, against sets of indices."""

from itertools import product

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from dcr.receiver.parts import NOBODY, Division, divide, held
from dcr.receiver.rank import Cover

SHAPE = (4, 6)
N = SHAPE[0] * SHAPE[1]


def elements(cover: Cover) -> set[int]:
    """Indices of ``cover``, one by one."""
    return {
        first + sum(i * stride for i, (_, stride) in zip(steps, dims, strict=True))
        for first, dims in cover
        for steps in product(*(range(size) for size, _ in dims))
    }


@st.composite
def boxes(draw: st.DrawFn) -> tuple[int, tuple[tuple[int, int], ...]]:
    """A block of rows and columns, steps of 2 and transposed dims included."""
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    row, column = draw(st.integers(0, 4 - rows)), draw(st.integers(0, 6 - columns))
    step = draw(st.sampled_from([1, 2]))
    dims = ((rows, 6), (len(range(0, columns, step)), step))
    merged = draw(st.booleans()) and columns == 6 and step == 1
    if merged:
        dims = ((rows * 6, 1),)  # type: ignore[assignment]
    return row * 6 + column, tuple(reversed(dims)) if draw(st.booleans()) else dims


covers = st.lists(boxes(), max_size=3).map(tuple)


@given(st.lists(covers, min_size=1, max_size=4).map(tuple))
def test_parts_are_the_elements_with_the_same_holders(ranks: tuple[Cover, ...]) -> None:
    """Every element lies in the one part whose holders are the ranks that hold it."""
    parts = divide(N, ranks)
    inside = [elements(cover) for cover in ranks]
    event(f"{len(parts.holders)} parts")
    assert parts.num_missing == N - len(set().union(*inside))
    found: dict[int, tuple[int, ...]] = {}
    for rank, (numbers, mine) in enumerate(zip(parts.numbers, parts.of_rank, strict=True)):
        assert set().union(*(elements(part) for part in mine), set()) == inside[rank]
        assert sum(len(elements(part)) for part in mine) == len(inside[rank])
        for number, part in zip(numbers, mine, strict=True):
            for index in elements(part):
                assert found.setdefault(index, parts.holders[number]) == parts.holders[number]
    for index, holders in found.items():
        assert holders == tuple(rank for rank, has in enumerate(inside) if index in has)


@given(covers)
def test_held_counts_each_element_once(cover: Cover) -> None:
    """Overlapping boxes of one rank do not count twice."""
    assert held(cover, N) == len(elements(cover))


@given(st.lists(covers, min_size=1, max_size=3).map(tuple))
def test_a_division_finds_the_part_of_an_index(ranks: tuple[Cover, ...]) -> None:
    """Against the sets, with granules of any size."""
    parts = divide(N, ranks)
    for mine in parts.of_rank:
        division = Division.of(N, mine)
        want = [
            next((i for i, part in enumerate(mine) if index in elements(part)), NOBODY) for index in range(N)
        ]
        assert division.part_of(np.arange(N)).tolist() == want


def test_granules_keep_large_tensors_cheap() -> None:
    """A row shard of a large tensor is one granule, not a mask of all its elements."""
    rows = ((0, ((1 << 40, 1),)),), ((1 << 40, ((1 << 40, 1),)),)
    parts = divide(1 << 41, rows)
    assert (sorted(parts.holders), parts.num_missing) == ([(0,), (1,)], 0)
    assert Division.of(1 << 41, parts.of_rank[1]).labels.size == 2


def test_scalars_and_empty_tensors() -> None:
    """A scalar is one box without dims; an empty tensor has no elements to hold."""
    assert divide(1, (((0, ()),),)).num_missing == 0
    assert divide(0, ((),)) == divide(0, ((),))
    assert divide(0, ((),)).num_missing == 0
    assert divide(1, ((),)).num_missing == 1
