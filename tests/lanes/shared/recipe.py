"""``dcr grpo`` with an engine: one seed gives one run, whether refits are deltas or dense or workers die."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CORE = Path(sys.prefix).parent / ".venv/bin/python"
DRIVER = _CORE if _CORE.exists() else Path(sys.executable)
"""The trainer's environment where there is one; a lane's has all that the tiny run needs."""
KILLS = (
    ["faults.kill=[runtime-1.rank-0:receiver.item.after:3:1]"],  # in mid-apply of the first refit
    ["faults.kill_runtime_every=2"],
)

_START_S = 600
_MANY_STEPS = 100_000
"""More than any test waits for."""


@dataclass(frozen=True)
class Finished:
    """A run that has ended well. ``rows`` are its metrics, ``shown`` what it printed."""

    folder: Path
    summary: dict[str, Any]
    rows: list[dict[str, Any]]
    shown: str


def finished(folder: Path, *words: str) -> Finished:
    """Run ``dcr grpo model=tiny`` with ``words`` into ``folder``."""
    argv = [str(DRIVER), "-m", "dcr_recipes.cli", "grpo", "model=tiny", f"run_dir={folder}", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return Finished(folder, json.loads((folder / "summary.json").read_text()), rows, done.stdout)


@contextmanager
def live(folder: Path, *words: str) -> Iterator[None]:
    """A run of the tiny model in ``folder`` after its first refit; interrupted at the end."""
    argv = [
        *(str(DRIVER), "-m", "dcr_recipes.cli", "grpo", "model=tiny", f"run_dir={folder}"),
        *(f"steps={_MANY_STEPS}", *words),
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
        while not num_steps(folder):
            assert process.poll() is None, process.stderr and process.stderr.read()
            assert time.monotonic() < end, "no refit has come"
            time.sleep(0.5)
        yield
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=120)


def num_steps(folder: Path) -> int:
    """Steps that a run has reported so far."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def asked(command: str, folder: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and answer of a command about a run."""
    argv = [str(DRIVER), "-m", "dcr_recipes.cli", command, str(folder), "--json", *words]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.stdout, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, answer


def assert_same(ours: Finished, theirs: Finished) -> None:
    """Tokens, rewards and weights are equal, and so is everything that follows from them."""
    for key in ("token_digest", "rewards", "weights_digest", "final_version", "differing_bits"):
        assert ours.summary[key] == theirs.summary[key], key
    for left, right in zip(ours.rows, theirs.rows, strict=True):
        assert left["rollout/token_digest"] == right["rollout/token_digest"]


def check_refits(run: Finished, steps: int, *, instances: int = 2) -> None:
    """Every refit changes bits, leaves none different, and leaves nothing in the cache."""
    assert [row["version"] for row in run.rows] == list(range(1, steps + 1))
    assert all(row["refit/changed_fraction"] > 0 for row in run.rows)
    check_proven(run)
    assert all(row["refit/payload_bytes"] < row["refit/dense_bytes"] / 2 for row in run.rows)
    assert len(set(run.summary["rewards"])) == steps
    # The probe of before a refit finds its prompt in the cache; after it, nothing of it is left.
    assert all(row["runtime/prompt_cache_hits"] == instances * (row["step"] - 1) for row in run.rows)


def check_proven(run: Finished) -> None:
    """Every byte of every instance was compared at every version, and none differs."""
    assert all((row["verify/differing_bits"], row["verify/share"]) == (0, 1.0) for row in run.rows)


def check_logprobs(run: Finished) -> None:
    """The policy computes nearly what the engines said."""
    assert all(0 <= row["train/gen_kl_error"] < 0.01 for row in run.rows)


def check_killed(run: Finished, dense: Finished) -> None:
    """Workers were killed, the others repaired, and nothing else is different."""
    assert "restarted" in run.shown
    assert any(row["refit/attempts"] > 1 for row in run.rows), "the other instance was repaired"
    assert_same(run, dense)
