"""``dcr verify`` and ``dcr log`` on a run that is alive, with real processes."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.processes
WORDS = ("model=tiny", "recipe=grpo_tiny", "lr=1e-4", "steps=400", "verify=off", "trace=false")


def _dcr(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "dcr_recipes.cli", *words], capture_output=True, text=True, timeout=300
    )


def _json(done: "subprocess.CompletedProcess[str]") -> Any:
    return json.loads(done.stdout)


def _await_rows(folder: Path, num_rows: int) -> None:
    end = time.monotonic() + 240
    while not folder.exists() or folder.read_text().count("\n") < num_rows:
        assert time.monotonic() < end, "the run does not advance"
        time.sleep(0.1)


def test_receivers_are_audited_between_refits_of_a_live_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run = subprocess.Popen(
        [sys.executable, "-m", "dcr_recipes.cli", "grpo", *WORDS, f"run_dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await_rows(folder / "metrics.jsonl", 2)
        done = _dcr("verify", str(folder), "--json")
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    finally:
        run.terminate()
        run.wait(60)
    found = _json(done)
    assert (done.returncode, found["proven"], found["receivers_checked"]) == (0, True, True), found
    verdicts = {finding["what"]: finding["verdict"] for finding in found["findings"]}
    assert (verdicts["runtime-0"], verdicts["runtime-1"]) == ("proven", "proven")
    assert rows[1]["runtime/prompt_cache_hits"] > rows[0]["runtime/prompt_cache_hits"]

    after = _json(_dcr("verify", str(folder), "--json"))
    assert (after["proven"], after["receivers_checked"]) == (True, False)
    versions = _json(_dcr("log", str(folder), "--json"))["versions"]
    assert [version["version"] for version in versions] == list(range(after["version"] + 1))
    assert all(version["audit"] for version in versions)
