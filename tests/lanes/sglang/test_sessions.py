"""What an update session of SGLang's own classes does to weights around a call, with the plug-in's hooks."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.layers.quantization.base_config import QuantizeMethodBase
from sglang.srt.managers.io_struct import BeginWeightUpdateReqInput, EndWeightUpdateReqInput
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater
from tests.lanes.sglang.hooked import hooks  # noqa: F401 -- a fixture, for all tests here
from torch import nn

from dcr_adapters.sglang import refusals
from dcr_adapters.sglang.messages import SESSION
from dcr_adapters.sglang.refusals import Engine


class Method(QuantizeMethodBase):  # type: ignore[misc]  # SGLang is untyped here
    """Counts what a session does to its layer."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def create_weights(self, *_: Any, **__: Any) -> None: ...

    def apply(self, *_: Any, **__: Any) -> None: ...

    def restore_weights_before_loading(self, layer: nn.Module) -> None:
        self.done.append("restored")

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        self.done.append("processed")


class UnquantizedMethod(Method):
    """By its name, nothing to refuse."""


@pytest.mark.parametrize(
    ("method", "rid", "done"),
    [
        (Method(), SESSION, []),
        (Method(), None, ["restored", "processed"]),
        (UnquantizedMethod(), SESSION, ["restored", "processed"]),
    ],
    ids=["refused", "not of DCR's", "taken"],
)
def test_a_call_leaves_weights_of_a_refused_engine_as_they_are(
    method: Method, rid: str | None, done: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "this_engine", Engine)
    monkeypatch.setattr(torch.distributed, "barrier", lambda **_: None)
    sessions = sessions_of(method)
    assert sessions.begin_weight_update(BeginWeightUpdateReqInput(rid=rid, selector="target")).success
    sessions._session = SimpleNamespace(selector="target", loaded_weights=True)
    assert sessions.end_weight_update(EndWeightUpdateReqInput(rid=rid)).success
    assert method.done == done


def test_what_cannot_be_told_leaves_weights_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "barrier", lambda **_: None)
    monkeypatch.setattr(refusals, "this_engine", lambda: 1 / 0)
    method = UnquantizedMethod()
    asked = BeginWeightUpdateReqInput(rid=SESSION, selector="target")
    assert sessions_of(method).begin_weight_update(asked).success
    assert method.done == []


def sessions_of(method: Method) -> Any:
    """Of one runner on the CPU, whose model has one layer."""
    model, layer = nn.Module(), nn.Module()
    layer.weight = nn.Parameter(torch.zeros(2), requires_grad=False)
    layer.quant_method = method
    model.add_module("layer", layer)
    unused = dict.fromkeys(
        ("model_config", "update_model_fields", "recapture_cuda_graph", "get_model_runner"), None
    )
    updater = WeightUpdater(
        tp_rank=0, device="cpu", gpu_id=0, custom_weight_loaders={}, get_model=lambda: model, **unused
    )
    made = SchedulerWeightUpdaterManager.__new__(SchedulerWeightUpdaterManager)
    made.tp_worker = SimpleNamespace(
        weight_update_runners=lambda: [("target", SimpleNamespace(weight_updater=updater))]
    )
    made.draft_worker = made._session = made.tp_cpu_group = None
    return made
