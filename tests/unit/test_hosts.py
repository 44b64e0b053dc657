"""Runtimes inside serving processes are made as the configuration says; the engines are stubs."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.engine_controls import Recorded

from dcr.receiver.workers.messages import Greeting
from dcr_recipes.compose import compose
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes import host_sglang, host_vllm
from dcr_recipes.processes.border import Context
from dcr_recipes.processes.host import build


@pytest.fixture
def stub_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker each, which greets and answers nothing more."""
    workers = SimpleNamespace(greetings=(Greeting(0, 1, 1, "cpu"),), tell=print)
    monkeypatch.setattr("dcr.receiver.workers.ranks.Workers", lambda *_, **__: workers)
    monkeypatch.setattr(host_sglang, "_built", lambda _: (object(), Recorded(), workers))
    for name in ("watch_group", "_arguments", "_started", "_end_with"):
        monkeypatch.setattr(host_vllm, name, lambda *_: SimpleNamespace(vllm_config=None))


@pytest.mark.usefixtures("stub_engines")
@pytest.mark.parametrize(
    ("runtime", "index"), [("hf", 0), ("vllm", 0), ("sglang", 0), ("mixed", 0), ("mixed", 1)]
)
def test_every_runtime_looks_for_payloads_as_often_as_it_is_told(
    runtime: str, index: int, tmp_path: Path
) -> None:
    for words, poll_s in ([], 0.02), (["transport.poll_s=0.5"], 0.5):
        config = compose(["model=tiny", f"runtime={runtime}", "transport=s3", *words])
        context = Context(f"runtime-{index}", index, 1, RunFolder(tmp_path), config)
        assert build(context).poll_s == poll_s
