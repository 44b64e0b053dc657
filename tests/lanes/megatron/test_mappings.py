"""Every mapping class: its closed form against the Bridge's own conversion of tokens, on random shapes."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes.megatron.mapping_cases import (
    CASES,
    bridge,
    degrees,
    direct_pieces,
    fused_expert,
    fused_gated_expert,
    qkvg,
    sizes,
    table_of,
)
from tests.lanes.megatron.standins import Case

from dcr.errors import UnsupportedPath
from dcr_adapters.megatron.probe import localize, select


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=20)
@given(degrees, sizes, sizes)
def test_closed_forms_are_the_bridges_own_conversion(name: str, t: int, a: int, b: int) -> None:
    case = CASES[name](t, a, b)
    covered: dict[str, list[Any]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for rank in range(t):
        pieces = direct_pieces(case, rank)
        found = select(localize(case.mapping, t, rank), case.module(), case.local_shape())
        assert not isinstance(found, str), found
        assert {each.name for each in found if (each.table >= 0).any()} == {each.name for each in pieces}
        for each in found:
            shapes[each.name] = each.shape
            piece = next((piece for piece in pieces if piece.name == each.name), None)
            if piece is None:
                continue
            assert piece.shape == each.shape
            np.testing.assert_array_equal(table_of(piece, case.local_shape()), each.table)
            assert piece.split == each.split
            if piece.split or rank == 0:
                covered.setdefault(each.name, []).append(each.table[each.table >= 0])
    for tensor, parts in covered.items():  # every canonical element exactly once
        size = int(np.prod(shapes[tensor]))
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(size))


@settings(max_examples=20)
@given(st.sampled_from([1, 2]), sizes, sizes)
def test_a_class_without_a_closed_form_is_traced(t: int, a: int, b: int) -> None:
    case = qkvg(t, a, b)
    rows = case.shape[0]
    if rows != ((a + 2) * 4 + a) * b * t:  # shards would need padding, which the Bridge has none for
        return
    seen: dict[str, list[Any]] = {}
    for rank in range(t):
        for piece in direct_pieces(case, rank):
            seen.setdefault(piece.name, []).append(table_of(piece, case.local_shape()))
    assert {name: sum(int((part >= 0).sum()) for part in parts) for name, parts in seen.items()} == {
        "q": a * b * t * 4 * 8, "k": b * t * 4 * 8, "v": b * t * 4 * 8, "g": a * b * t * 8,
    }  # fmt: skip


@pytest.mark.parametrize("make", [fused_expert, fused_gated_expert])
@pytest.mark.parametrize("transposed", [False, True])
@settings(max_examples=20)
@given(degrees, sizes, sizes)
def test_fused_experts_are_stacked(make: Any, transposed: bool, t: int, a: int, b: int) -> None:
    case = make(t, a, b)
    case.mapping.transpose_on_export = transposed
    for rank in range(t):
        (piece,) = direct_pieces(case, rank)
        found: Any = select(localize(case.mapping, t, rank), case.module(), case.local_shape())
        (each,) = found
        rows, columns = each.shape
        near = np.flatnonzero(each.table >= 0)
        at_row, at_column = np.divmod(each.table[near], columns)
        flat = at_column * rows + at_row if transposed else each.table[near]
        want = np.full(each.table.size, -1, dtype=np.int64)
        want[near] = 2 * rows * columns + flat  # expert 2 of 4
        np.testing.assert_array_equal(table_of(piece, case.local_shape()), want)
        assert piece.shape == ((4, columns, rows) if transposed else (4, rows, columns))


def test_a_checkpoint_tells_whether_stacked_experts_are_transposed() -> None:
    case = fused_expert(1, 1, 3)  # [2, 3] an expert
    case.mapping.transpose_on_export = True
    for shape in ((4, 2, 3), (4, 3, 2)):
        (piece,) = direct_pieces(case, 0, hf_state={"w": torch.zeros(shape)})
        assert piece.shape == shape


@given(st.lists(st.floats(-4, 4, width=16), min_size=1, max_size=8))
def test_a_zero_centred_norm_is_served_with_one_added_in_its_own_precision(values: list[float]) -> None:
    mapping = bridge.RMSNorm2ZeroCenteredRMSNormMapping("m.weight", "w")
    case = Case(mapping, "replicated", None, (len(values),), 2, split=None)
    (piece,) = direct_pieces(case, 1)
    weight = torch.tensor(values, dtype=torch.bfloat16)
    want = localize(mapping, 2, 1).megatron_to_hf(weight, case.module())["w"]
    got = piece.take(weight) + 1
    assert piece.plus_one
    assert torch.equal(got.reshape(-1), want)
    assert isinstance(select(localize(mapping, 2, 1), case.module(), (len(values),)), str)


@given(degrees, sizes, st.integers(1, 40))
def test_rows_beyond_the_vocabulary_are_cropped(t: int, b: int, vocabulary: int) -> None:
    padded = -(-vocabulary // (8 * t)) * 8 * t
    mapping = bridge.AutoMapping("m.weight", "w")
    marks = {"is_embedding_or_output_parameter": True}
    case = Case(mapping, "column", None, (padded, b), t, marks=marks)
    seen = []
    for rank in range(t):
        pieces = direct_pieces(case, rank, vocab_size=vocabulary)
        kept = range(rank * padded // t, min((rank + 1) * padded // t, vocabulary))
        assert bool(pieces) == bool(len(kept))
        for piece in pieces:
            assert piece.shape == (vocabulary, b)
            assert piece.map.is_complete
            seen.append(piece.map.to_far(np.arange(piece.map.src_size, dtype=np.int64)))
    np.testing.assert_array_equal(np.concatenate(seen), np.arange(vocabulary * b))


def test_a_smaller_vocabulary_than_the_configurations_is_refused() -> None:
    marks = {"is_embedding_or_output_parameter": True}
    case = Case(bridge.AutoMapping("m.weight", "w"), "column", None, (8, 2), 1, marks=marks)
    with pytest.raises(UnsupportedPath, match="8 rows for a vocabulary of 9"):
        direct_pieces(case, 0, vocab_size=9)
