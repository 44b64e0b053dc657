"""``dcr grpo runtime=vllm``: one seed gives one run, whether refits are deltas or dense or workers die."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dcr_recipes.trace.check import check_file

STEPS = 4
_CORE = Path(sys.prefix).parent / ".venv/bin/python"
DRIVER = _CORE if _CORE.exists() else Path(sys.executable)
"""The trainer's environment where there is one; the lane's has all that the tiny run needs."""


@dataclass(frozen=True)
class Finished:
    folder: Path
    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    shown: str


def _run(folder: Path, *words: str) -> Finished:
    argv = [
        str(DRIVER), "-m", "dcr_recipes.cli", "grpo", "model=tiny", "runtime=vllm", f"run_dir={folder}",
        f"runtime.interpreter={sys.executable}", f"steps={STEPS}", *words,
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Finished(folder, json.loads((folder / "summary.json").read_text()), rows, done.stdout)


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return _run(tmp_path_factory.mktemp("delta") / "run", "refit=dcr")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return _run(tmp_path_factory.mktemp("dense") / "run", "refit=dense")


def _assert_same(ours: Finished, theirs: Finished) -> None:
    for key in ("token_digest", "rewards", "weights_digest", "final_version", "differing_bits"):
        assert ours.summary[key] == theirs.summary[key], key
    for left, right in zip(ours.rows, theirs.rows, strict=True):
        assert left["rollout/token_digest"] == right["rollout/token_digest"]


def test_every_refit_changes_bits_and_leaves_none_different(delta: Finished) -> None:
    assert [row["version"] for row in delta.rows] == list(range(1, STEPS + 1))
    assert all(row["refit/changed_fraction"] > 0 for row in delta.rows)
    assert all((row["verify/differing_bits"], row["verify/share"]) == (0, 1.0) for row in delta.rows)
    assert all(row["refit/payload_bytes"] < row["refit/dense_bytes"] / 2 for row in delta.rows)
    assert len(set(delta.summary["rewards"])) == STEPS
    # The probe of before a refit finds its prompt in the cache; after it, nothing of it is left.
    assert all(row["runtime/prompt_cache_hits"] == 2 * (row["step"] - 1) for row in delta.rows)


def test_the_policys_log_probabilities_are_the_engines(delta: Finished) -> None:
    assert all(0 <= row["train/gen_kl_error"] < 0.01 for row in delta.rows)


def test_a_dense_run_of_the_same_seed_is_the_same_run(delta: Finished, dense: Finished) -> None:
    _assert_same(delta, dense)


def test_the_trace_of_such_a_run_is_sound(delta: Finished) -> None:
    assert check_file(delta.folder / "trace.json") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["faults.kill=[runtime-1.rank-0:receiver.item.after:3:1]"],  # in mid-apply of the first refit
        ["faults.kill_runtime_every=2"],
    ],
)
def test_killed_workers_change_nothing(tmp_path: Path, dense: Finished, words: list[str]) -> None:
    found = _run(tmp_path / "run", "refit=dcr", *words)
    assert "restarted" in found.shown
    assert any(row["refit/attempts"] > 1 for row in found.rows), "the other instance was repaired"
    _assert_same(found, dense)


@pytest.mark.slow
def test_two_ranks_an_instance(tmp_path: Path) -> None:
    words = ["runtime.tensor_parallel=2", "runtime.instances=1"]
    delta = _run(tmp_path / "delta", "refit=dcr", *words)
    assert all((row["verify/differing_bits"], row["verify/share"]) == (0, 1.0) for row in delta.rows)
    _assert_same(delta, _run(tmp_path / "dense", "refit=dense", *words))
