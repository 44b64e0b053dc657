"""``dcr doctor`` and ``dcr verify`` on the live engines of a run, as a newcomer would type them."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.lanes.shared.recipe import DRIVER

_START_S = 600


@contextmanager
def live_run(folder: Path) -> Iterator[None]:
    """A run of the tiny model with two engines, after its first refit; stopped at the end."""
    argv = [
        str(DRIVER), "-m", "dcr_recipes.cli", "grpo", "model=tiny", "runtime=vllm", f"run_dir={folder}",
        f"runtime.interpreter={sys.executable}", "steps=500",
    ]  # fmt: skip
    process = subprocess.Popen(
        argv,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # ignored in a background shell's jobs
    )
    try:
        end = time.monotonic() + _START_S
        metrics = folder / "metrics.jsonl"
        while not (metrics.exists() and metrics.read_text().count("\n")):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < end, "no refit has come"
            time.sleep(0.5)
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)


def asked(command: str, folder: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of a command."""
    done = subprocess.run(
        [str(DRIVER), "-m", "dcr_recipes.cli", command, str(folder), "--json"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer


@pytest.mark.slow
def test_doctor_and_verify_see_the_engines(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with live_run(folder):
        code, found = asked("doctor", folder)
        assert (code, found["well"], found["away"]) == (0, True, {})
        assert [one["receiver"] for one in found["instances"]] == ["runtime-0", "runtime-1"]
        for one in found["instances"]:
            assert one["state"] != "empty"
            assert one["audit"]["finding"] is None
            assert [set(rank["methods"]) for rank in one["ranks"]] == [{"learned"}]
        code, proof = asked("verify", folder)
    assert code == 0, proof
    live = [one for one in proof["findings"] if one["what"] in ("runtime-0", "runtime-1")]
    assert len(live) == 2
    assert all("bit for bit" in one["detail"] for one in live)
