"""What a run on real processes leaves in its folder; a runtime is killed in the middle of a refit."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dcr.observe import ANCHOR
from dcr_recipes.layout import RunFolder
from dcr_recipes.trace.check import check_file
from dcr_recipes.trace.seconds import STAGES
from dcr_recipes.trace.stages import TRACKS

pytestmark = pytest.mark.processes

STEPS = 3
WORDS = ("model=tiny", f"steps={STEPS}", "verify=sampled", "faults.kill=[runtime-0:receiver.item.after:20]")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, str]:
    folder = RunFolder(tmp_path_factory.mktemp("left") / "run")
    argv = [sys.executable, "-m", "dcr_recipes.cli", "grpo", *WORDS, f"run_dir={folder.root}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


ELSEWHERE = {"coordinator.stage", "coordinator.staged", "receiver.hold", "owner.residual", ANCHOR}
"""Stages of asynchronous mode, of trainers with residual tensors, and of runs with later anchors."""


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_trace_shows_every_stage_and_breaks_no_rule(run: tuple[RunFolder, str]) -> None:
    folder, _ = run
    assert check_file(folder.trace_json) == []
    events = json.loads(folder.trace_json.read_text())["traceEvents"]
    seen = Counter(event["name"] for event in events if event["ph"] == "X")
    assert set(TRACKS) - set(seen) - ELSEWHERE <= {
        "coordinator.restore"
    }  # by admission or by the next attempt
    assert seen["coordinator.commit"] == STEPS
    assert seen["owner.fold_in"] == 2 * STEPS
    assert {
        e["args"]["incarnation"] for e in events if e["ph"] == "X" and e["name"] == "receiver.settle"
    } == {1, 2}


def test_rows_tell_seconds_by_stage_and_the_entropy_bound(run: tuple[RunFolder, str]) -> None:
    rows = _rows(run[0].metrics)
    assert len(rows) == STEPS
    for row in rows:
        assert all(isinstance(value, int | float | str) for value in row.values())
        times = {stage: row[f"refit/{stage}_s"] for stage in STAGES}
        assert times["anchor"] == 0.0
        for stage in set(STAGES) - {"restore", "load", "audit", "anchor"}:
            assert 0 < times[stage] < row["refit/seconds"], stage
        assert (times["audit"] > 0) == (row["refit/attempts"] > 1), (
            "a repair is audited whole, nothing else is"
        )
        latency, *bounds = (row[f"bounds/{name}_s"] for name in ("latency", "construction", "transport"))
        assert all(0 < bound < latency for bound in bounds)
        assert 0 < row["bounds/finalization_s"] < latency < row["refit/seconds"]
        assert 0 < row["refit/entropy_bound_bytes"] < row["refit/payload_bytes"] < row["refit/dense_bytes"]
        assert (row["verify/share"], row["verify/differing_bits"]) == (0.1, 0)


def test_change_rates_agree_with_the_totals(run: tuple[RunFolder, str]) -> None:
    folder, _ = run
    for row, rates in zip(_rows(folder.metrics), _rows(folder.change_rates), strict=True):
        assert (row["step"], row["version"]) == (rates["step"], rates["version"])
        changed = sum(counts[0] for counts in rates["changed"].values())
        elements = sum(counts[1] for counts in rates["changed"].values())
        assert changed / elements == pytest.approx(row["refit/changed_fraction"])


def test_pictures_are_there_and_the_output_is_plain(run: tuple[RunFolder, str]) -> None:
    folder, shown = run
    pictures = {path.name: path.stat().st_size for path in folder.plots.iterdir()}
    assert set(pictures) == {
        "change_rate.png", "last_refit.png", "payload_bytes.png", "refit_seconds.png", "reward.png",
    }  # fmt: skip
    assert min(pictures.values()) > 10_000
    assert "\x1b" not in shown
    for part in (f"{STEPS}/{STEPS}", "restarted", "plots/reward.png"):
        assert part in shown, part
    # which phases are seen is chance: each is looked up a few times a second, and some are shorter
    assert re.search(r"^ +\d+\.\d s  owner-0: \w", shown, re.MULTILINE)
    assert "at least 10% of the tensors" in " ".join(shown.split())
