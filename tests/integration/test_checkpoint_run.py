"""``model=<path>`` on real processes: a local checkpoint with a tokenizer, by delta and densely."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.integration.checkpoints import write_checkpoint

pytestmark = pytest.mark.processes

STEPS = 3
SAME = ("token_digest", "rewards", "weights_digest", "final_version", "differing_bits")


def _run(folder: Path, *words: str, timeout_s: int = 300) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    argv = [sys.executable, "-m", "dcr_recipes.cli", "grpo", f"run_dir={folder}", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "summary.json").read_text()), rows


def test_a_local_checkpoint_is_trained_and_served_by_its_path(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "model")
    words = (f"model={tmp_path / 'model'}", f"steps={STEPS}")
    delta, rows = _run(tmp_path / "delta", *words, "faults.kill_runtime_every=2")
    assert all(row["refit/changed_fraction"] > 0 for row in rows)
    assert all(row["verify/differing_bits"] == 0 for row in rows)
    assert all(row["refit/payload_bytes"] < row["refit/dense_bytes"] / 2 for row in rows)
    assert any(row["reward/std"] > 0 for row in rows)
    assert any(mark.name.endswith("version-2") for mark in (tmp_path / "delta" / "faults").iterdir())
    dense, _ = _run(tmp_path / "dense", *words, "refit=dense")
    assert {key: delta[key] for key in SAME} == {key: dense[key] for key in SAME}
    assert all(delta["peak_rss_bytes"].values())


@pytest.mark.slow
def test_the_demo_model_by_delta_is_the_demo_model_refitted_densely(tmp_path: Path) -> None:
    delta, rows = _run(tmp_path / "delta", "steps=2", timeout_s=1500)
    assert all(row["refit/changed_fraction"] > 0 for row in rows)
    assert [row["verify/differing_bits"] for row in rows] == [0, 0]
    assert all(row["refit/payload_bytes"] < row["refit/dense_bytes"] / 50 for row in rows)
    dense, _ = _run(tmp_path / "dense", "steps=2", "refit=dense", timeout_s=1500)
    assert {key: delta[key] for key in SAME} == {key: dense[key] for key in SAME}
