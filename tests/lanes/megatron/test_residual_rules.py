"""What is left to the residual path: by the published rule, by adapters, hooks and storage, by tracing."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.lanes.megatron.mapping_cases import (
    CASES,
    PlainBridge,
    bridge,
    direct_pieces,
    fused_expert,
    fused_gated_expert,
    gated,
    setting,
    table_of,
)
from tests.lanes.megatron.standins import Case

from dcr.source.residual import ResidualConversion
from dcr_adapters.megatron.classify import Direct, classify


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
