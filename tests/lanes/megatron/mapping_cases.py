"""Every mapping class of the Bridge, as cases of random shapes over t ranks, and what is asked of each."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from tests.lanes.megatron.standins import Case, attention

from dcr_adapters.megatron.classify import Direct, Setting, classify
from dcr_adapters.megatron.imports import import_bridge

import_bridge()

from megatron.bridge.models.conversion import param_mapping as bridge  # noqa: E402 -- needs import_bridge
from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge  # noqa: E402

__all__ = ["CASES", "PlainBridge", "bridge", "degrees", "direct_pieces", "setting", "sizes", "table_of"]

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
