"""What must be refused, and what vLLM's own sparse refit gets wrong where ours is right."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import vllm  # noqa: F401 -- imported once, before ranks are forked
from safetensors.torch import load_file
from tests.lanes.shared import checkpoints
from tests.lanes.shared.forked import World
from tests.lanes.shared.run import Run
from tests.lanes.vllm.world import Layout, world
from torch import nn

from dcr.errors import UnsupportedPath
from dcr.model import Catalogue
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import RankPort
from dcr.receiver.workers.rank_server import local_rank, resident_digests
from dcr.receiver.workers.ranks import Workers, remote_ranks
from dcr.testing.deltas import audit_of
from dcr_adapters.vllm.loader import VllmLoader
from dcr_adapters.vllm.refusals import refusals


class _Unknowing:
    """A loader whose adapter knows of no hazard."""

    def __init__(self, loader: NativeLoader) -> None:
        self.load, self.resident = loader.load, loader.resident
        self.skips, self.synchronize = loader.skips, loader.synchronize

    def refusals(self) -> dict[str, str]:
        return {}


def unknowing_rank(loader: NativeLoader, catalogue: Catalogue) -> RankPort:
    return local_rank(_Unknowing(loader), catalogue)


def writer_over(ranks: World, path: Path, folder: Path) -> tuple[InstanceWriter, Run]:
    run = Run(folder, checkpoints.catalogue(path), checkpoints.version(path))
    return InstanceWriter(remote_ranks(Workers(ranks, folder=folder), run.setup()), run.catalogue), run


@pytest.fixture
def moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.make(tmp_path_factory.getbasetemp(), "qwen3moe")


def _refusals(loader: VllmLoader, _: str) -> str:
    return json.dumps(loader.refusals())


@pytest.mark.parametrize("tp", [1, 2])
def test_stock_engines_are_refused_by_name(moe: Path, tmp_path: Path, tp: int) -> None:
    with world(moe, Layout(tp), keep=False, extra={"refusals": _refusals}) as ranks:
        for found in ranks.extra("refusals"):
            packed = {name.rsplit(".", 2)[-2] + "." + name.rsplit(".", 1)[-1] for name in found}
            assert {
                "qkv_proj.weight",
                "o_proj.weight",
                "routed_experts.w13_weight",
                "lm_head.weight",
            } <= packed
        writer, _ = writer_over(ranks, moe, tmp_path)
        with pytest.raises(UnsupportedPath, match="DCR_VLLM_KEEP_UNPACKED"):
            writer.prewarm()


def test_stock_linears_are_refused_without_that_knowledge(moe: Path, tmp_path: Path) -> None:
    """Their weights are gone: the learning pass finds no place for them."""
    with world(moe, Layout(2), keep=False, make_rank=unknowing_rank) as ranks:
        run = Run(tmp_path, checkpoints.catalogue(moe), checkpoints.version(moe))
        for rank in remote_ranks(Workers(ranks, folder=tmp_path), run.setup()):
            refused = {name for name, path in rank.prewarm().paths.items() if path.refusal}
            expected = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "mlp.gate.weight")
            assert refused >= {name for name in run.catalogue.by_name() if name.endswith(expected)}


def test_stock_experts_do_not_pass_the_base_value_gate(
    moe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed into a tensor of the same shape: nothing but reading values through the map can tell."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts as Experts

    for name in ("process_weights_after_loading", "apply"):
        kept = getattr(Experts, name)
        stock = getattr(kept, "__wrapped__", kept)
        monkeypatch.setattr(stock, "__dcr_keeps__", True, raising=False)  # as if installed already
        monkeypatch.setattr(Experts, name, stock)
    with world(moe, Layout(2), make_rank=unknowing_rank) as ranks:
        writer, run = writer_over(ranks, moe, tmp_path)
        writer.prewarm()
        expected = audit_of(run.catalogue, run.newest)
        wrong = {name for name, digest in writer.audit().items() if digest != expected[name]}
    assert wrong == {name for name in run.catalogue.by_name() if ".experts." in name}


def test_known_hazards_are_named() -> None:
    from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend as Backend
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
    from vllm.model_executor.layers.quantization.fp8 import Fp8LinearMethod

    def moe_method(backend: Backend) -> Any:
        method = UnquantizedFusedMoEMethod.__new__(UnquantizedFusedMoEMethod)
        nn.Module.__init__(method)
        method.unquantized_backend = backend
        return method

    model = nn.Module()
    for name, method in {
        "fp8": Fp8LinearMethod.__new__(Fp8LinearMethod),
        "flash": moe_method(Backend.FLASHINFER_CUTLASS),
        "aiter": moe_method(Backend.AITER),
        "triton": moe_method(Backend.TRITON),
    }.items():
        layer = nn.Module()
        layer.weight = nn.Parameter(torch.zeros(2), requires_grad=False)
        layer.__dict__["quant_method"] = method
        model.add_module(name, layer)
    reloading = nn.Module()
    reloading.weight = nn.Parameter(torch.zeros(2, device="meta"), requires_grad=False)
    model.add_module("reloading", reloading)
    for name, flag in {"amx": "is_amx_bmm_enabled", "fp8_bmm": "is_aiter_triton_fp8_bmm_enabled"}.items():
        attention = nn.Module()  # of its own it has no parameters: they are the projection's
        setattr(attention, flag, True)
        model.add_module(name, attention)
    found = refusals(model)
    assert sorted(found) == [
        "aiter.weight",
        "amx",
        "flash.weight",
        "fp8.weight",
        "fp8_bmm",
        "reloading.weight",
    ]
    assert "packed form" in found["amx"]
    assert "moe_backend=triton" in found["flash.weight"]
    assert "dense refits" in found["fp8.weight"]
    assert "reload is in progress" in found["reloading.weight"]


def test_experts_that_vllm_may_move_are_refused(moe: Path, tmp_path: Path) -> None:
    """The loader would go on with the placement that vLLM began with, and so would all that proves it."""
    with world(moe, Layout(2, replicas=2)) as ranks:
        writer, _ = writer_over(ranks, moe, tmp_path)
        with pytest.raises(UnsupportedPath, match="start vLLM without enable_eplb"):
            writer.prewarm()


def _begin_reload(loader: VllmLoader, _: str) -> str:
    from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

    initialize_layerwise_reload(loader.model)
    return json.dumps(loader.refusals())


def test_vllms_own_reload_is_seen(tmp_path_factory: pytest.TempPathFactory) -> None:
    llama = checkpoints.make(tmp_path_factory.getbasetemp(), "llama")
    with world(llama, Layout(1), extra={"reload": _begin_reload}) as ranks:
        found = ranks.extra("reload")[0]
    assert found
    assert all("reload is in progress" in reason for reason in found.values())


def _vllm_patches(loader: VllmLoader, argument: str) -> str:
    """Names that differ from a stock load after vLLM's own sparse refit from old to new."""
    from vllm.model_executor.model_loader.checkpoint_weight_patch import (
        CheckpointWeightPatch,
        load_checkpoint_weight_patches,
    )

    old, new = (load_file(Path(path) / "model.safetensors") for path in json.loads(argument))
    loader.load(new.items())
    expected = resident_digests(loader)
    loader.load(old.items())
    patches = []
    for name, before in old.items():
        words = {2: torch.int16, 4: torch.int32}[before.element_size()]
        at = (before.view(words).view(-1) != new[name].view(words).view(-1)).nonzero().view(-1)
        if at.numel():
            values = new[name].view(-1)[at]
            patches.append(CheckpointWeightPatch(name, tuple(before.shape), before.dtype, values, at))
    load_checkpoint_weight_patches(loader.model, patches)
    found = resident_digests(loader)
    return json.dumps([name for name, digest in expected.items() if found[name] != digest])


@pytest.mark.parametrize("family", ["nemotron_h-g2", "nemotron_h-g1"])
def test_vllms_own_sparse_refit_corrupts_composed_loads(
    family: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """``test_matrix`` proves ours right on the same two versions."""
    folder = tmp_path_factory.getbasetemp()
    old = checkpoints.make(folder, family)
    new = checkpoints.changed(old, folder / f"{family}-new")
    with world(old, Layout(1), extra={"patches": _vllm_patches}) as ranks:
        wrong = ranks.extra("patches", json.dumps([str(old), str(new)]))[0]
    assert any(name.endswith("mixer.A") for name in wrong)
