"""What must be refused, by name, before any weight is touched; and what the loader passes over in silence."""

import os
from pathlib import Path
from typing import Any

import pytest
import sglang.srt.managers.scheduler  # noqa: F401 -- imported once, before ranks are forked
import torch
from sglang.srt.managers import mm_schedule
from sglang.srt.mem_cache.multimodal_cache import EmbeddingResult
from sglang.srt.server_args import ServerArgs
from tests.lanes.sglang.world import Layout, world
from tests.lanes.shared import checkpoints
from tests.lanes.shared.run import Run
from torch import nn

from dcr.errors import UnsupportedPath
from dcr.model import Catalogue, TensorSpec
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.workers.messages import Answer, Call
from dcr.receiver.workers.ranks import Workers, remote_ranks
from dcr_adapters.sglang.loader import SglangLoader
from dcr_adapters.sglang.messages import LOADER, Control, to_tensors
from dcr_adapters.sglang.refusals import Engine, refusals
from dcr_adapters.sglang.settings import _RULES, require_takes_calls
from dcr_adapters.sglang.worker import answer_control, dcr_call
from dcr_recipes.runtime.sglang_worker import run_call


def _model(**attributes: Any) -> nn.Module:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.zeros(2), requires_grad=False)
    layer.__dict__.update(attributes)
    model = nn.Module()
    model.add_module("layer", layer)
    return model


class _Method:
    """Of a layer; named by its class."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class UnquantizedThing(_Method):
    pass


class Fp8Thing(_Method):
    pass


class OnlineThing(UnquantizedThing):
    """Quantizes what it has loaded."""


@pytest.mark.parametrize(
    ("engine", "name", "remedy"),
    [
        (Engine(weight_cache="daemon"), "weight_cache_mode", "--weight-cache-mode off"),
        (Engine(copies_views=True), "SGLANG_MOE_COPY_WEIGHT_VIEWS_BEFORE_H2D", "unset the variable"),
        (Engine(moves_experts=True), "enable_eplb", "without --enable-eplb"),
        (Engine(offload_gb=1.0), "cpu_offload_gb", "--cpu-offload-gb 0"),
        (Engine(stages=2), "pp_size", "dense refits"),
    ],
)
def test_settings_are_named(engine: Engine, name: str, remedy: str) -> None:
    found = refusals(_model(quant_method=UnquantizedThing()), engine)
    assert list(found) == [name]
    assert remedy in found[name]


@pytest.mark.parametrize(
    ("attributes", "engine", "word"),
    [
        ({"quant_method": Fp8Thing()}, Engine(), "Fp8Thing"),
        ({"quant_method": OnlineThing()}, Engine(), "OnlineThing"),
        ({"use_intel_amx_backend": True}, Engine(), "AMX"),
        ({"quant_method": UnquantizedThing(use_flashinfer_trtllm_moe=True)}, Engine(), "flashinfer_trtllm"),
        (
            {"quant_method": UnquantizedThing(use_flashinfer_trtllm_moe=False)},
            Engine(shuffles=True),
            "SGLANG_USE_AITER=0",
        ),
        ({"quant_method": UnquantizedThing(w13_swiglu_interleaved=True)}, Engine(), "interleaved"),
    ],
)
def test_layers_are_named(attributes: dict[str, Any], engine: Engine, word: str) -> None:
    found = refusals(_model(**attributes), engine)
    assert list(found) == ["layer.weight"]
    assert word in found["layer.weight"]


def test_derived_weights_are_named() -> None:
    model = _model(_derived_weight_cache_error="it keeps splits.")
    model.__dict__["post_load_weights"] = lambda: None
    found = refusals(model, Engine())
    assert "post_load_weights" in found["Module"]
    assert "keeps splits" in found["Module: derived weights"]
    assert refusals(_model(quant_method=None), Engine()) == {}


def test_sglangs_own_defaults_are_taken() -> None:
    require_takes_calls(ServerArgs(model_path="model", custom_weight_loader=[LOADER]), LOADER)
    assert set(_RULES) <= set(ServerArgs.__struct_fields__)


def test_embeddings_of_old_weights_are_forgotten() -> None:
    """SGLang's flush empties the radix cache only: an image seen before would be read from old weights."""
    mm_schedule.init_mm_embedding_cache(1 << 20)
    cache = mm_schedule.embedding_cache
    assert cache is not None
    assert cache.set(7, EmbeddingResult(embedding=torch.zeros(4, 4)))
    SglangLoader(_model(), Engine()).synchronize()
    assert cache.get_single(7) is None


def test_a_name_that_the_loader_passes_over_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """SGLang's loaders ignore what they do not know; the copies that they make are what counts."""
    qwen = checkpoints.make(tmp_path_factory.getbasetemp(), "qwen3moe")
    known, version = checkpoints.catalogue(qwen), checkpoints.version(qwen)
    strange = TensorSpec("model.layers.0.mlp.strange_proj.weight", (4,), "bfloat16")
    catalogue = Catalogue(known.run, known.audit_key, (*known.tensors, strange))
    version[strange.name] = version["model.norm.weight"][:4]
    run = Run(tmp_path, catalogue, version)
    with world(qwen, Layout(1)) as ranks:
        writer = InstanceWriter(remote_ranks(Workers(ranks, folder=tmp_path), run.setup()), catalogue)
        with pytest.raises(UnsupportedPath, match=r"strange_proj\.weight: no rank places it"):
            writer.prewarm()


class _Server:
    """A rank that cannot even fail properly."""

    rank = 0

    def answer(self, call: Call) -> Answer:
        raise MemoryError(call.method)


def test_nothing_is_raised_into_the_scheduler(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server: Any = _Server()
    answer_control([("other", torch.zeros(3, dtype=torch.uint8))], lambda: server)
    answer_control([("dcr.control", torch.zeros(3, dtype=torch.uint8))], lambda: server)
    control = Control({"0": Call("hello")}, str(tmp_path / "answer"))
    answer_control(to_tensors(control), lambda: server)
    dcr_call(nn.Module(), to_tensors(control))  # no rank of anything
    run_call(nn.Module(), to_tensors(control))
    assert [record.message for record in caplog.records] == [f"process {os.getpid()} could not answer"] * 5
    assert not list(tmp_path.iterdir())
