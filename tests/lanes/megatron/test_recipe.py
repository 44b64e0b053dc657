"""``dcr grpo trainer=megatron``: one seed gives one run, whether refits are deltas or dense."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

STEPS = 3
_CORE = Path(sys.prefix).parent / ".venv/bin/python"
_CLI = ["-m", "dcr_recipes.cli", "grpo", "model=tiny", "trainer=megatron"]


@dataclass(frozen=True)
class Finished:
    """A complete run."""

    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    shown: str


def run(folder: Path, *words: str) -> Finished:
    """The driver and the runtimes use the core environment where there is one, the trainer this one."""
    driver = _CORE if _CORE.exists() else Path(sys.executable)
    argv = [str(driver), *_CLI, f"trainer.interpreter={sys.executable}", f"steps={STEPS}"]
    done = subprocess.run(
        [*argv, f"run_dir={folder}", *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Finished(json.loads((folder / "summary.json").read_text()), rows, done.stdout)


def assert_same(ours: Finished, theirs: Finished) -> None:
    for key in ("token_digest", "rewards", "weights_digest", "final_version", "differing_bits"):
        assert ours.summary[key] == theirs.summary[key], key


def assert_proven(found: Finished) -> None:
    assert [row["version"] for row in found.rows] == list(range(1, STEPS + 1))
    assert all((row["verify/differing_bits"], row["verify/share"]) == (0, 1.0) for row in found.rows)
    assert all(row["refit/changed_fraction"] > 0 for row in found.rows)


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return run(tmp_path_factory.mktemp("delta") / "run")


def test_every_refit_changes_bits_and_leaves_none_different(delta: Finished) -> None:
    assert_proven(delta)
    assert all(row["refit/payload_bytes"] < row["refit/dense_bytes"] / 10 for row in delta.rows)
    assert all(0 <= row["train/gen_kl_error"] < 0.01 for row in delta.rows)
    assert all(row["train/grad_norm"] > 0 for row in delta.rows)


def test_a_dense_run_of_the_same_seed_is_the_same_run(delta: Finished, tmp_path: Path) -> None:
    assert_same(delta, run(tmp_path / "run", "refit=dense"))


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["tensor_parallel", "pipeline_parallel"])
def test_other_layouts(tmp_path: Path, axis: str) -> None:
    words = [f"trainer.{axis}=2"]
    found = run(tmp_path / "delta", *words)
    assert_proven(found)
    assert_same(found, run(tmp_path / "dense", "refit=dense", *words))


@pytest.mark.slow
def test_a_trainer_killed_before_its_second_refit_goes_on_from_its_checkpoint(
    delta: Finished, tmp_path: Path
) -> None:
    found = run(tmp_path / "run", "faults.kill=[owner-1:trainer.refit.before:2:1]")
    assert "restarted" in found.shown
    assert_same(delta, found)
