"""Processes that a warm one forks are in every way as if they had been started from nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.integration.stand_in import IMPORTED

from dcr_recipes.launch.starting import SWITCH, Process, Spec, Starter
from dcr_recipes.launch.supervisor import Supervisor
from dcr_recipes.launch.warm import Forked

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere processes start from nothing"),
]
ROOT = Path(__file__).parents[2]
ENV = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}
MODULE = "tests.integration.stand_in"


def _specs(folder: Path, **actions: str) -> list[Spec]:
    argv = (sys.executable, "-m", MODULE, str(folder))
    env = {**ENV, "OMP_NUM_THREADS": "1"}
    return [Spec(name, (*argv, name, action), name, env=env) for name, action in actions.items()]


@contextlib.contextmanager
def _supervised(
    specs: list[Spec], folder: Path, *, max_restarts: int = 0, lock: int = -1
) -> Iterator[Supervisor]:
    supervisor = Supervisor(specs, folder, max_restarts=max_restarts, lock=lock)
    try:
        supervisor.start()
        yield supervisor
    finally:
        supervisor.stop()


def _until(condition: Callable[[], bool], *, step: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "did not happen within 60 s"
        step()
        time.sleep(0.01)


def _told(folder: Path, name: str, supervisor: Supervisor, start: int = 1) -> dict[str, Any]:
    path = folder / f"{name}.{start}"
    _until(path.exists, step=supervisor.poll)
    read: dict[str, Any] = json.loads(path.read_text())
    return read


def _warm_pids(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode().split("\0")
            if "dcr_recipes.launch.warm_process" in words and str(folder) in words:
                found.append(int(entry.name))
    return found


def _state(pid: int) -> str:
    """As ``ps`` shows it; nothing for one that is gone or dead."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0].replace("Z", "")
    return ""


def _as_started(told: dict[str, Any]) -> dict[str, Any]:
    """What does not differ from start to start."""
    same = {key: told[key] for key in ("ppid", "main", "collects", "argv", "shown", "cwd", "dispositions")}
    env = {key: value for key, value in told["env"].items() if key not in ("_", "LC_CTYPE")}
    leads = told["session"] == told["pid"]
    targets = sorted(target for target in told["descriptors"].values() if not target.startswith("/proc"))
    return same | {"env": env, "leads": leads, "descriptors": targets}


def test_a_forked_process_is_as_one_started_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    descriptor = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    found = {}
    try:
        for way in ("1", "0"):
            monkeypatch.setenv(SWITCH, way)
            with _supervised(_specs(tmp_path, a="stay", b="stay"), tmp_path, lock=descriptor) as supervisor:
                told = [_told(tmp_path, name, supervisor) for name in "ab"]
                assert [t["pid"] for t in told] == list(supervisor.pids().values())
                assert len(_warm_pids(tmp_path)) == int(way)
                for t in told:
                    assert t["env"].pop(SWITCH) == way
                found[way] = [_as_started(t) for t in told]
                drawn = [number for t in told for number in t["drawn"]]
                assert len(set(drawn)) == len(drawn), "two processes draw the same random numbers"
            (tmp_path / "a.1").unlink()
            (tmp_path / "b.1").unlink()
    finally:
        os.close(descriptor)
    assert found["1"] == found["0"]
    assert found["1"][0]["ppid"] == os.getpid()
    assert found["1"][0]["leads"]
    assert str(tmp_path / "lock") in found["1"][0]["descriptors"]
    said = (tmp_path / "a.log").read_text().splitlines()
    assert said == ["--- a, start 1", "a says", "a complains"] * 2
    assert _warm_pids(tmp_path) == []


ENDS = {"exit0": 0, "exit7": 7, "raise": 1, "signal9": -9, "signal15": -15, "signal11": -11}


def _start(starter: Starter, spec: Spec, folder: Path, incarnation: int = 1) -> Process:
    _until(lambda: starter.is_due(spec))
    with (folder / f"{spec.name}.log").open("ab") as log:
        return starter.start(spec, incarnation, log)


@pytest.fixture
def starter(tmp_path: Path) -> Iterator[Starter]:
    made = Starter(_specs(tmp_path, a="stay", b="stay"), tmp_path)
    try:
        made.open()
        yield made
    finally:
        made.close()


def test_ends_are_reported_exactly(starter: Starter, tmp_path: Path) -> None:
    for action, code in ENDS.items():
        (spec,) = _specs(tmp_path, **{action: action})
        process = _start(starter, spec, tmp_path, incarnation=3)
        assert isinstance(process, Forked)
        assert (process.wait(30), process.returncode, process.poll()) == (code, code, code)
        assert (tmp_path / f"{action}.3").exists()
    log = (tmp_path / "raise.log").read_text()
    assert "Traceback" in log
    assert "RuntimeError: out of cheese" in log


def test_signals_from_outside_reach_the_process(starter: Starter, tmp_path: Path) -> None:
    spec = _specs(tmp_path, a="stay")[0]
    process = _start(starter, spec, tmp_path)
    _until((tmp_path / "a.1").exists)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    os.kill(process.pid, signal.SIGSTOP)
    _until(lambda: _state(process.pid) == "T")
    assert process.poll() is None
    os.kill(process.pid, signal.SIGCONT)
    process.terminate()
    assert process.wait(30) == -signal.SIGTERM
    process.kill()  # it is gone: nobody else may be hit


def test_processes_outlive_the_warm_one_and_the_next_start_from_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with _supervised(_specs(tmp_path, a="stay", b="stay"), tmp_path, max_restarts=1) as supervisor:
        told = [_told(tmp_path, name, supervisor) for name in "ab"]
        (warm,) = _warm_pids(tmp_path)
        os.kill(warm, signal.SIGKILL)
        os.kill(told[0]["pid"], signal.SIGKILL)
        again = _told(tmp_path, "a", supervisor, start=2)
        assert again["ppid"] == os.getpid()
        assert again["pid"] != told[0]["pid"]
        assert supervisor.pids() == {"a": again["pid"], "b": told[1]["pid"]}
        _until(lambda: _state(told[1]["pid"]) == "S")
    (record,) = caplog.records
    assert "was killed by SIGKILL" in record.message
    assert str(tmp_path / "warm-0.log") in record.message


@pytest.mark.parametrize("accident", ["thread", "exit"])
def test_a_warm_process_that_cannot_serve_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, accident: str
) -> None:
    """``thread``: a fork would lose it, with whatever locks it holds."""
    monkeypatch.setenv(IMPORTED, accident)
    with _supervised(_specs(tmp_path, a="stay", b="stay"), tmp_path) as supervisor:
        told = [_told(tmp_path, name, supervisor) for name in "ab"]
        assert list(supervisor.pids().values()) == [t["pid"] for t in told]
    assert len(caplog.records) == 1
    assert "ended with code 1" in caplog.text
    said = {"thread": "error: threads are alive after the imports", "exit": "error: no such library"}
    assert said[accident] in (tmp_path / "warm-0.log").read_text()


def test_a_warm_process_that_does_not_answer_is_given_up(
    starter: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = _specs(tmp_path, a="stay", b="stay")
    process = _start(starter, first, tmp_path)
    _until((tmp_path / "a.1").exists)  # now it shows its own name
    (warm,) = _warm_pids(tmp_path)
    os.kill(warm, signal.SIGSTOP)
    monkeypatch.setattr("dcr_recipes.launch.warm._PATIENCE_S", 0.1)
    other = _start(starter, second, tmp_path)
    assert isinstance(process, Forked)
    assert isinstance(other, subprocess.Popen)
    assert _warm_pids(tmp_path) == []
    for started in (process, other):
        started.kill()
        assert started.wait(30) == -signal.SIGKILL


def test_one_warm_process_serves_one_environment(tmp_path: Path) -> None:
    """Thread counts are read when libraries load: what differs in one is never forked from another."""
    one = _specs(tmp_path, a="stay", b="stay")
    two = [
        replace(spec, env={**spec.env, "OMP_NUM_THREADS": "2"})
        for spec in _specs(tmp_path, c="stay", d="stay")
    ]
    alone = [replace(spec, env={**spec.env, "OMP_NUM_THREADS": "3"}) for spec in _specs(tmp_path, e="stay")]
    with _supervised([*one, *two, *alone], tmp_path) as supervisor:
        told = {name: _told(tmp_path, name, supervisor) for name in "abcde"}
        threads = {name: t["env"]["OMP_NUM_THREADS"] for name, t in told.items()}
        assert threads == {"a": "1", "b": "1", "c": "2", "d": "2", "e": "3"}
        assert len(_warm_pids(tmp_path)) == 2


DRIVER = """
import sys, time
from pathlib import Path
from dcr_recipes.launch.supervisor import Supervisor
from tests.integration.test_warm_starts import _specs
folder = Path(sys.argv[1])
supervisor = Supervisor(_specs(folder, a="stay", b="stay"), folder, max_restarts=0)
supervisor.start()
while True:
    supervisor.poll()
    time.sleep(0.01)
"""


@pytest.mark.parametrize("when", ["importing", "serving"])
def test_nothing_outlives_a_killed_driver(tmp_path: Path, when: str) -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], env={**os.environ, **ENV})
    try:
        _until(lambda: len(_warm_pids(tmp_path)) == 1)
        told = [tmp_path / f"{name}.1" for name in "ab"] if when == "serving" else []
        _until(lambda: all(path.exists() for path in told))
        pids = [json.loads(path.read_text())["pid"] for path in told]
        _until(lambda: all(_state(pid) == "S" for pid in pids))
    finally:
        driver.kill()
        driver.wait()
    _until(lambda: not any(map(_state, pids)) and _warm_pids(tmp_path) == [])
