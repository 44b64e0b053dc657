"""Every mapping class: its closed form against the Bridge's own conversion of tokens, on random shapes."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes.megatron.standins import Case, attention

from dcr.errors import UnsupportedPath
from dcr.source.residual import ResidualConversion
from dcr_adapters.megatron.classify import Direct, Setting, classify
from dcr_adapters.megatron.imports import import_bridge
from dcr_adapters.megatron.probe import localize, select

import_bridge()

from megatron.bridge.models.conversion import param_mapping as bridge  # noqa: E402 -- needs import_bridge
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge  # noqa: E402

degrees = st.sampled_from([1, 2, 3, 4])
sizes = st.integers(1, 3)


class PlainBridge(MegatronModelBridge):  # type: ignore[misc]
    """A bridge that modifies nothing."""

    def provider_bridge(self, hf_pretrained: Any) -> Any:
        raise AssertionError

    def mapping_registry(self) -> Any:
        raise AssertionError


def setting(**more: Any) -> Setting:
    options: dict[str, Any] = {"bridge": PlainBridge(), "vocab_size": None, "num_experts": 4}
    return Setting(**(options | more))


def column(t: int, a: int, b: int) -> Case:
    return Case(bridge.ColumnParallelMapping("m.weight", "w"), "column", None, (t * a, b), t)


def row(t: int, a: int, b: int) -> Case:
    return Case(bridge.RowParallelMapping("m.weight", "w"), "row", None, (a, t * b), t, split=1)


def row_bias(t: int, a: int, b: int) -> Case:
    return Case(bridge.RowParallelMapping("m.bias", "w"), "row", None, (a * b,), t, split=None)


def replicated(t: int, a: int, b: int) -> Case:
    return Case(bridge.ReplicatedMapping("m.weight", "w"), "replicated", None, (a, b), t, split=None)


def direct(t: int, a: int, b: int) -> Case:
    return Case(bridge.DirectMapping("m.weight", "w"), "replicated", None, (a, b, 2), t, split=None)


def auto(kind: str, split: int | None) -> Callable[[int, int, int], Case]:
    def make(t: int, a: int, b: int) -> Case:
        shape = [a + 1, b + 2]
        if split is not None:
            shape[split] *= t
        return Case(bridge.AutoMapping("m.weight", "w"), kind, None, (shape[0], shape[1]), t, split=split)

    return make


def permuted(t: int, a: int, b: int) -> Case:
    return Case(bridge.AutoMapping("m.weight", "w", (1, 0)), "column", None, (t * a, b), t)


def permuted_3d(t: int, a: int, b: int) -> Case:
    return Case(bridge.AutoMapping("m.weight", "w", (2, 0, 1)), "column", None, (t * a, b, 2), t)


def gated(t: int, a: int, b: int) -> Case:
    return Case(bridge.GatedMLPMapping("m.weight", gate="g", up="u"), "column", None, (t * 2 * a, b), t)


def gated_bias(t: int, a: int, b: int) -> Case:
    return Case(bridge.GatedMLPMapping("m.bias", gate="g", up="u"), "column", None, (t * 2 * a * b,), t)


def qkv(t: int, a: int, b: int, *, gate: bool = False, kind: str = "column", bias: bool = False) -> Case:
    config = attention(a, b * t, 4, attention_output_gate=gate)
    rows = ((2 if gate else 1) * a + 2) * b * t * 4
    shape = (rows,) if bias else (rows, 8)
    split = 0 if kind == "column" else None
    return Case(bridge.QKVMapping("m.weight", q="q", k="k", v="v"), kind, config, shape, t, split=split)


def qkv_few_groups(t: int, a: int, b: int) -> Case:
    """One query group over all ranks: heads of a shard are no whole group."""
    config = attention(a * t, 1, 4 * t)
    return Case(
        bridge.QKVMapping("m.weight", q="q", k="k", v="v"), "column", config, ((a * t + 2) * 4 * t, 8), t
    )


def concatenated(t: int, a: int, b: int) -> Case:
    config = attention(a, b * t, 4)
    return Case(bridge.ConcatenatedQKVMapping("m.weight", "w"), "column", config, ((a + 2) * b * t * 4, 8), t)


def kv(t: int, a: int, b: int) -> Case:
    config = attention(a, b * t, 4)
    return Case(bridge.KVMapping("m.weight", k="k", v="v"), "column", config, (2 * b * t * 4, 8), t)


def qkvg(t: int, a: int, b: int) -> Case:
    """No closed form: gates of all heads follow behind, on the last rank."""
    config = attention(a, b * t, 4)
    rows = (a + 2) * b * t * 4
    gates = a * b * t
    rows += gates + (-(rows + gates)) % t
    return Case(bridge.QKVGMapping("m.weight", q="q", k="k", v="v", g="g"), "column", config, (rows, 8), t)


def mamba(a: int, b: int, t: int) -> Any:
    return SimpleNamespace(
        mamba_num_heads=t * a, mamba_head_dim=b, mamba_state_dim=3, mamba_num_groups=t, hidden_size=8
    )


def mamba_in_proj(t: int, a: int, b: int) -> Case:
    rows = 2 * t * a * b + 2 * 3 * t + t * a
    return Case(bridge.MambaInProjMapping("m.weight", "w"), "column", mamba(a, b, t), (rows, 8), t)


def mamba_conv(t: int, a: int, b: int, *, bias: bool = False) -> Case:
    rows = t * a * b + 2 * 3 * t
    name, shape = ("m.bias", (rows,)) if bias else ("m.weight", (rows, 1, 4))
    return Case(bridge.MambaConv1dMapping(name, "w"), "column", mamba(a, b, t), shape, t)


def delta_net(t: int, a: int, b: int) -> Any:
    return SimpleNamespace(
        linear_num_key_heads=t * a,
        linear_key_head_dim=3,
        linear_num_value_heads=t * a * b,
        linear_value_head_dim=2,
        hidden_size=8,
    )


def gdn_conv(t: int, a: int, b: int) -> Case:
    rows = 2 * 3 * t * a + 2 * t * a * b
    return Case(bridge.GDNConv1dMapping("m.weight", "w"), "column", delta_net(t, a, b), (rows, 1, 4), t)


def gdn(t: int, a: int, b: int, *, separate: bool = False) -> Case:
    rows = 2 * 3 * t * a + 2 * 2 * t * a * b + 2 * t * a * b
    mapping: Any = (
        bridge.GDNLinearMappingSeparate("m.weight", qkv="qkv", z="z", b="b", a="a")
        if separate
        else bridge.GDNLinearMapping("m.weight", qkvz="qkvz", ba="ba")
    )
    return Case(mapping, "column", delta_net(t, a, b), (rows, 8), t)


EXPERT = "x.experts.linear_fc1.weight2"


def fused_expert(t: int, a: int, b: int) -> Case:
    return Case(bridge.FusedExpertMapping(EXPERT, "w"), "row", None, (a + 1, t * b), t, split=1)


def fused_gated_expert(t: int, a: int, b: int) -> Case:
    return Case(bridge.FusedGatedExpertMapping(EXPERT, "w"), "column", None, (t * 2 * a, b), t)


CASES: dict[str, Callable[[int, int, int], Case]] = {
    "column": column,
    "row": row,
    "row bias": row_bias,
    "replicated": replicated,
    "direct": direct,
    "auto column": auto("column", 0),
    "auto row": auto("row", 1),
    "auto replicated": auto("replicated", None),
    "permuted": permuted,
    "permuted 3d": permuted_3d,
    "gated": gated,
    "gated bias": gated_bias,
    "qkv": qkv,
    "qkv bias": lambda t, a, b: qkv(t, a, b, bias=True),
    "qkv output gate": lambda t, a, b: qkv(t, a, b, gate=True),
    "qkv replicated": lambda t, a, b: qkv(t, a, b, kind="replicated"),
    "qkv one group": qkv_few_groups,
    "concatenated": concatenated,
    "kv": kv,
    "mamba in_proj": mamba_in_proj,
    "mamba conv": mamba_conv,
    "mamba conv bias": lambda t, a, b: mamba_conv(t, a, b, bias=True),
    "gdn conv": gdn_conv,
    "gdn": gdn,
    "gdn separate": lambda t, a, b: gdn(t, a, b, separate=True),
}  # fmt: skip


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


def direct_pieces(case: Case, rank: int, **more: Any) -> tuple[Any, ...]:
    found = classify(case.task(), setting(**more), shape=case.local_shape(), size=case.size, rank=rank)
    assert isinstance(found, Direct), found
    return found.pieces


def table_of(piece: Any, shape: tuple[int, ...]) -> Any:
    """Destination of every element of the local parameter, -1 where it is not taken."""
    count = int(np.prod(shape))
    ids = torch.arange(count).reshape(shape)
    taken = piece.take(ids).numpy()
    cut = taken.size // 3
    np.testing.assert_array_equal(
        piece.take(ids, cut, taken.size - cut).numpy(), taken[cut : taken.size - cut]
    )
    table = np.full(count, -1, dtype=np.int64)
    table[taken] = piece.map.to_far(np.arange(taken.size, dtype=np.int64))
    return table


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


@pytest.mark.parametrize("name", [*CASES, "fused", "fused gated"])
def test_the_published_rule_knows_plain_shardings_and_gated_halves_only(name: str) -> None:
    made = {"fused": fused_expert, "fused gated": fused_gated_expert} | CASES
    case = made[name](2, 2, 2)
    found = classify(
        case.task(), setting(classification="published"), shape=case.local_shape(), size=2, rank=0
    )
    plain = ("column", "row", "row bias", "replicated", "direct", "gated", "gated bias")
    assert isinstance(found, Direct) == (name in plain or name.startswith("auto"))


def residual_of(task: Any, case: Case, **more: Any) -> ResidualConversion:
    found = classify(task, setting(**more), shape=case.local_shape(), size=case.size, rank=0)
    assert isinstance(found, ResidualConversion)
    return found


def test_merged_adapters_hooks_and_quantized_storage_are_residual() -> None:
    case = gated(2, 2, 2)
    found = residual_of(case.task(), case, adapters={"m.weight": ("m.in", "m.out")})
    assert (found.inputs, found.outputs) == (("m.weight", "m.in", "m.out"), ("g", "u"))
    hooked = case.task()
    hooked.export_hook = lambda name, tensor: [(name, tensor)]
    assert "export hook" in residual_of(hooked, case).reason
    quantized = case.task()
    quantized.param_weight = torch.zeros(case.local_shape(), dtype=torch.int8)
    quantized.param_weight._quantizer = object()
    assert "quantized" in residual_of(quantized, case).reason


class Scaling(bridge.AutoMapping):  # type: ignore[misc]
    """Multiplies by a factor that all share."""

    def megatron_to_hf(self, megatron_weights: Any, megatron_module: Any) -> Any:
        found = super().megatron_to_hf(megatron_weights, megatron_module)
        return {name: tensor * 3 for name, tensor in found.items()}


class FanOut(bridge.AutoMapping):  # type: ignore[misc]
    """Each source element twice in one tensor."""

    def megatron_to_hf(self, megatron_weights: Any, megatron_module: Any) -> Any:
        found = super().megatron_to_hf(megatron_weights, megatron_module)
        return {name: torch.cat([tensor, tensor]) for name, tensor in found.items()}


class Interleaved(bridge.AutoMapping):  # type: ignore[misc]
    """Even rows first: a selection, of which nobody has the closed form."""

    def megatron_to_hf(self, megatron_weights: Any, megatron_module: Any) -> Any:
        found = super().megatron_to_hf(megatron_weights, megatron_module)
        return {name: torch.cat([tensor[::2], tensor[1::2]]) for name, tensor in found.items()}


def test_an_unknown_class_that_computes_is_residual_and_one_that_selects_is_direct() -> None:
    for mapping, reason in ((Scaling, "no single source element"), (FanOut, "feeds several")):
        case = Case(mapping("m.weight", "w"), "column", None, (8, 3), 2)
        assert reason in residual_of(case.task(), case).reason
    case = Case(Interleaved("m.weight", "w"), "column", None, (8, 3), 2)
    whole = np.arange(24).reshape(8, 3)
    canonical = np.concatenate([whole[::2], whole[1::2]]).reshape(-1)
    for rank in range(2):
        (piece,) = direct_pieces(case, rank)
        table = table_of(piece, (4, 3))
        np.testing.assert_array_equal(canonical[table], whole[4 * rank : 4 * rank + 4].reshape(-1))


class HookBridge(PlainBridge):
    """Adds a constant to every task and swaps the halves of one."""

    def maybe_modify_converted_hf_weight(self, task: Any, converted: Any, hf_state: Any) -> Any:
        if task.param_name == "swap.weight":
            return {name: torch.cat([each[2:], each[:2]]) for name, each in converted.items()}
        return {**converted, "constant": torch.ones(3)}


def test_a_bridges_hook_on_converted_weights_is_judged_task_by_task() -> None:
    kept = Case(bridge.AutoMapping("m.weight", "w"), "column", None, (4, 3), 2)
    (piece,) = direct_pieces(kept, 1, bridge=HookBridge())
    np.testing.assert_array_equal(table_of(piece, (2, 3)), np.arange(6, 12).reshape(-1))
    swapped = Case(bridge.AutoMapping("swap.weight", "w"), "column", None, (4, 3), 2)
    (piece,) = direct_pieces(swapped, 1, bridge=HookBridge())
    np.testing.assert_array_equal(table_of(piece, (2, 3)), np.arange(6))
