#!/usr/bin/env python3
"""Whether two runs were the same training: `scripts/compare_runs.py RUN RUN`. Standard library only.

Compared bit for bit: tokens, rewards, KL and loss of every step, and the digest of the final weights.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = (
    "rollout/token_digest",
    "reward/mean",
    "reward/std",
    "train/gen_kl_error",
    "train/loss",
    "train/grad_norm",
)
TOTALS = ("num_steps", "token_digest", "rewards", "weights_digest")


def steps_of(run: Path) -> list[dict[str, Any]]:
    """What each step of ``run`` must have in common with the other's."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in ("step", *COLUMNS)} for row in rows]


def differences(first: Path, second: Path) -> list[str]:
    """One line for each step and total that differs."""
    found = []
    for one, other in zip(steps_of(first), steps_of(second), strict=False):
        found += [
            f"step {one['step']}: {name}: {one[name]} and {other[name]}"
            for name in COLUMNS
            if one[name] != other[name]
        ]
    totals = [json.loads((run / "summary.json").read_text()) for run in (first, second)]
    found += [
        f"{name}: {totals[0][name]} and {totals[1][name]}"
        for name in TOTALS
        if totals[0][name] != totals[1][name]
    ]
    return found


def main() -> int:
    """Print the verdict; 0 if the runs are the same, 1 if not, 2 if a folder has no finished run."""
    parser = argparse.ArgumentParser(description="Whether two finished runs were the same training.")
    parser.add_argument("run", type=Path, nargs=2, help="run folder")
    first, second = parser.parse_args().run
    for run in (first, second):
        if not (run / "summary.json").exists():
            parser.error(f"{run} holds no finished run (no summary.json); let it end, or resume it")
    found = differences(first, second)
    same = f"the same {len(steps_of(first))} steps: tokens, rewards, KL, loss, final weights"
    sys.stdout.write("\n".join(found or [same]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
