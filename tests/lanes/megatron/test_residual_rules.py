"""What is left to the residual path: by the published rule, by adapters, hooks and storage, by tracing."""

from types import SimpleNamespace
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

from dcr.errors import UnsupportedPath
from dcr.model import digest_hex, stored_bits
from dcr.source.residual import ResidualConversion, required_tensors
from dcr_adapters.megatron.classify import Direct, classify
from dcr_adapters.megatron.export import Export, digest_of
from dcr_adapters.megatron.model import alias_of


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


class Beside(bridge.AutoMapping):  # type: ignore[misc]
    """Adds a parameter and a buffer of the same module."""

    def megatron_to_hf(self, megatron_weights: Any, megatron_module: Any) -> Any:
        found = super().megatron_to_hf(megatron_weights, megatron_module)
        return {name: tensor + megatron_module.other + megatron_module.kept for name, tensor in found.items()}


def with_neighbours(case: Case) -> tuple[Any, Any]:
    """A task, and the module that holds its parameter among others."""
    task = case.task()
    module = task.megatron_module
    module.weight = task.param_weight
    module.other = torch.nn.Parameter(torch.zeros(()))
    module.register_buffer("kept", torch.zeros(()))
    return task, module


def test_a_change_of_what_else_its_module_holds_makes_an_output_dirty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from megatron.bridge.models.conversion import model_bridge

    monkeypatch.setattr(
        model_bridge, "_megatron_local_name_to_global", lambda models, config, name, stage: f"m.{name}"
    )
    case = Case(Beside("m.weight", "w"), "replicated", None, (4, 3), 1)
    task, module = with_neighbours(case)
    found = residual_of(task, case)
    assert found.inputs == ("m.weight", "m.other", "m.kept")
    export = Export(None, [module], [])
    before = export.digests(found.inputs)
    for changed in (module.other.data, module.kept):
        changed.add_(1)
        after = export.digests(found.inputs)
        dirty = [name for name in before if before[name] != after[name]]
        assert required_tensors(dirty, [found]) == ("w",)
        before = after


def test_neighbours_go_by_the_global_names_of_the_model() -> None:
    case = Case(Beside("m.weight", "w"), "replicated", None, (4, 3), 1)
    task, module = with_neighbours(case)
    found = residual_of(task, case, names={id(module.other): "layers.7.other"})
    assert found.inputs == ("m.weight", "layers.7.other", "m.kept")


@pytest.mark.parametrize("shape", [(0,), (), (7, 3)])
def test_a_digest_in_parts_is_that_of_all_bits(monkeypatch: pytest.MonkeyPatch, shape: Any) -> None:
    monkeypatch.setattr("dcr_adapters.megatron.export._DIGESTED", 4)
    tensor = torch.ones(shape, dtype=torch.bfloat16)
    assert digest_of(tensor) == digest_hex(stored_bits(tensor).tobytes())


class Computed(bridge.AutoMapping):  # type: ignore[misc]
    """What ``function`` makes of a weight."""

    function: Any = staticmethod(torch.sigmoid)

    def megatron_to_hf(self, megatron_weights: Any, megatron_module: Any) -> Any:
        found = super().megatron_to_hf(megatron_weights, megatron_module)
        return {name: type(self).function(tensor) for name, tensor in found.items()}


@pytest.mark.parametrize(
    "function",
    [
        torch.sigmoid,
        lambda weight: -torch.exp(-weight.float()),
        lambda weight: weight.float() / weight.float().abs().max(),
        lambda weight: weight.to(torch.float8_e4m3fn),
    ],
    ids=["saturated", "tiny", "normalized", "eight bits"],
)
@pytest.mark.parametrize("kind", ["column", "replicated"])
def test_small_or_saturated_results_are_no_constants(
    monkeypatch: pytest.MonkeyPatch, function: Any, kind: str
) -> None:
    monkeypatch.setattr(Computed, "function", staticmethod(function))
    split = 0 if kind == "column" else None
    case = Case(Computed("m.weight", "w"), kind, None, (4, 3), 2, split=split)
    assert residual_of(case.task(), case).reason == "Computed: 'w' is computed in floating point"


class AddingBridge(PlainBridge):
    """Gives what ``added`` makes of each converted weight besides it."""

    def __init__(self, **added: Any) -> None:
        self.added = added

    def maybe_modify_converted_hf_weight(self, task: Any, converted: Any, hf_state: Any) -> Any:
        more = {
            f"{name}.{key}": make(each)
            for key, make in self.added.items()
            for name, each in converted.items()
        }
        return {**converted, **more}


def test_a_copy_that_the_bridges_hook_adds_is_served_too() -> None:
    case = Case(bridge.AutoMapping("m.weight", "w"), "column", None, (4, 3), 2)
    pieces = direct_pieces(case, 1, bridge=AddingBridge(copy=torch.clone))
    assert [piece.name for piece in pieces] == ["w", "w.copy"]
    for piece in pieces:
        np.testing.assert_array_equal(table_of(piece, (2, 3)), np.arange(6, 12))


SCALAR = Case(bridge.DirectMapping("m.weight", "w"), "replicated", None, (), 2, split=None)


@pytest.mark.parametrize(
    "name", ["qkv", "column", "row", "row bias", "direct", "permuted", "qkv bias", "scalar"]
)
def test_whole_copies_need_no_trace(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An embedding has too many elements for it."""
    monkeypatch.setattr("dcr_adapters.megatron.probe.MOST_ELEMENTS", 1)
    case = SCALAR if name == "scalar" else CASES[name](2, 2, 2)
    own = direct_pieces(case, 1)
    adding = AddingBridge(copy=torch.clone, constant=lambda weight: torch.ones(3))
    found = direct_pieces(case, 1, bridge=adding)
    assert [piece.name for piece in found] == [each.name + end for end in ("", ".copy") for each in own]
    for piece, each in zip(found, own * 2, strict=True):
        assert (piece.shape, piece.split, piece.map) == (each.shape, each.split, each.map)
        np.testing.assert_array_equal(table_of(piece, case.local_shape()), table_of(each, case.local_shape()))


@pytest.mark.parametrize(
    "added",
    [
        lambda weight: weight.flip(0),
        lambda weight: weight.flip(1),
        lambda weight: weight.to(torch.bfloat16),
        lambda weight: torch.sigmoid(weight.float()),
        lambda weight: weight.float().abs().max(),
    ],
    ids=["rows", "columns", "cast", "computed", "scale"],
)
def test_what_a_hook_adds_is_a_copy_or_a_constant_only_if_it_is(
    monkeypatch: pytest.MonkeyPatch, added: Any
) -> None:
    monkeypatch.setattr("dcr_adapters.megatron.probe.MOST_ELEMENTS", 1)
    case = Case(bridge.AutoMapping("m.weight", "w"), "column", None, (2, 2), 2)
    found = residual_of(case.task(), case, bridge=AddingBridge(more=added))
    assert found.outputs == ("w", "w.more")
    assert "too many to trace" in found.reason


def test_only_the_bridges_own_tensor_has_the_alias_of_a_tied_head() -> None:
    found: Any = SimpleNamespace(
        alias="head", task=SimpleNamespace(mapping=bridge.AutoMapping("m.weight", "w"))
    )
    assert (alias_of(found, "w"), alias_of(found, "w.copy")) == ("head", None)


def scale(weight: Any) -> Any:
    return weight.float().abs().max()


@pytest.mark.parametrize("classification", ["closed_form", "published"])
def test_a_scale_that_a_hook_adds_is_refitted_with_its_weight(classification: str) -> None:
    case = CASES["qkv"](2, 2, 2)
    more: dict[str, Any] = {"bridge": AddingBridge(scale=scale), "classification": classification}
    found = residual_of(case.task(), case, **more)
    assert found.outputs == ("q", "k", "v", "q.scale", "k.scale", "v.scale")
    hooked = case.task()
    hooked.export_hook = lambda name, tensor: [(name, tensor), (f"{name}.scale", scale(tensor))]
    assert sorted(residual_of(hooked, case).outputs) == sorted(found.outputs)


def test_outputs_of_a_hook_that_looks_at_values_are_found_too() -> None:
    case = Case(bridge.AutoMapping("m.weight", "w"), "column", None, (4, 3), 2)
    looking = AddingBridge(scale=lambda weight: torch.tensor(float(weight.float().abs().max())))
    assert residual_of(case.task(), case, bridge=looking).outputs == ("w", "w.scale")
    failing = AddingBridge(scale=lambda weight: weight.no_such_method())
    assert residual_of(case.task(), case, bridge=failing).outputs == ("w",)


def test_eight_bit_floats_of_a_hook_are_residual() -> None:
    case = Case(bridge.AutoMapping("m.weight", "w"), "column", None, (4, 3), 2)
    eight = AddingBridge(
        eight=lambda weight: weight.to(torch.float8_e4m3fn),
        scale=lambda weight: torch.ones(2).to(torch.float8_e8m0fnu),
    )
    found = residual_of(case.task(), case, bridge=eight)
    assert found.outputs == ("w", "w.eight", "w.scale")


class CloningBridge(PlainBridge):
    """Gives every converted weight twice, and never the tensor itself."""

    def maybe_modify_converted_hf_weight(self, task: Any, converted: Any, hf_state: Any) -> Any:
        return {f"{name}{end}": each.clone() for name, each in converted.items() for end in ("", ".copy")}


@pytest.mark.parametrize("vocabulary", [9, 13, 16])
def test_a_padded_head_under_a_hook_that_clones_is_cropped(vocabulary: int) -> None:
    marks = {"is_embedding_or_output_parameter": True}
    case = Case(bridge.AutoMapping("m.weight", "w"), "column", None, (16, 3), 4, marks=marks)
    seen: dict[str, list[Any]] = {"w": [], "w.copy": []}
    for rank in range(4):
        for piece in direct_pieces(case, rank, bridge=CloningBridge(), vocab_size=vocabulary):
            assert piece.shape == (vocabulary, 3)
            seen[piece.name].append(piece.map.to_far(np.arange(piece.map.src_size, dtype=np.int64)))
    for parts in seen.values():
        np.testing.assert_array_equal(np.concatenate(parts), np.arange(vocabulary * 3))
    with pytest.raises(UnsupportedPath, match="16 rows for a vocabulary of 17"):
        direct_pieces(case, 0, bridge=CloningBridge(), vocab_size=17)
