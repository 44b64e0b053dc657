"""`dcr receive`: what is asked of whom, and mistakes in one line."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcr.receiver.workers.control import EngineControl
from dcr_adapters.sglang import http_control as sglang
from dcr_adapters.vllm import http_control as vllm
from dcr_recipes.cli import main
from dcr_recipes.compose import compose

URL = "http://127.0.0.1:9"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, EngineControl]]:
    """Names and controls of those who would take part in the run ``tmp_path``."""
    found: list[tuple[str, EngineControl]] = []

    def take_part(folder: object, config: object, name: str, control: Any, stop: threading.Event) -> None:
        assert not stop.is_set()
        found.append((name, control))

    opened = SimpleNamespace(folder=tmp_path, config=compose(["model=tiny"]))
    monkeypatch.setattr("dcr_recipes.commands.opened.open_run", lambda _: opened)
    monkeypatch.setattr("dcr_recipes.processes.joined_server.take_part", take_part)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    return found


@pytest.mark.parametrize(("engine", "kind"), [("sglang", sglang.HttpControl), ("vllm", vllm.HttpControl)])
def test_each_engine_has_its_own_control(
    asked: list[tuple[str, EngineControl]], engine: str, kind: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    words = ["--engine", engine, "--url", URL, "--name", "east", "--key-variable", "A_KEY"]
    assert main(["receive", "run", *words]) == 0
    [(name, control)] = asked
    assert name == "east"
    assert isinstance(control, kind)
    assert callable(control.lend)
    assert control._server._client.headers["authorization"] == "Bearer secret"
    control.close()


def test_a_name_of_the_runs_own_is_refused(
    asked: list[tuple[str, EngineControl]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["receive", "run", "--engine", "vllm", "--url", URL, "--name", "runtime-1"]) == 2
    assert "--name runtime-1: an instance of the run itself is called so" in capsys.readouterr().err
    assert not asked


def test_what_is_no_url_is_named(
    asked: list[tuple[str, EngineControl]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["receive", "run", "--engine", "sglang", "--url", "127.0.0.1:9"]) == 2
    assert "is not the url of a server" in capsys.readouterr().err
    assert not asked


def test_a_folder_without_a_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["receive", str(tmp_path), "--engine", "sglang", "--url", URL]) == 2
    assert "holds no run" in capsys.readouterr().err
