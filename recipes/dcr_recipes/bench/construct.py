"""Whole construction of a checkpoint: scan, project, encode, compress, digest (paper section 8.3, R8).

The owner's own path, without coordinator and with a transport that keeps only digests. GB are of
checkpoint bytes; candidate and trackers are both of that size and distinct memory.
"""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dcr import observe
from dcr.source import Baseline
from dcr_recipes.bench.construct_model import Checkpoint, kinds_of, make_baseline, make_checkpoint
from dcr_recipes.bench.construct_path import Built, Construction
from dcr_recipes.bench.payloads import PLANES, PUBLISHED
from dcr_recipes.bench.report import Column, Report, Row, Steps, grouped, percent, places
from dcr_recipes.bench.stages import StageSeconds
from dcr_recipes.bench.timing import Cost, median, process_clock, timed

RATES = (0.01, 0.03, 0.05)
MIB = 1024
QUICK_MIB = 3
ROUNDS = 3
THREADS = (1, 2)
CODECS = {"planes": PLANES, "published": PUBLISHED}

_COLUMNS = (
    Column("mode", "mode"),
    Column("rate", "changed", percent(2)),
    Column("change", "changes"),
    Column("cpu_s_per_gb", "CPU s/GB", places(3)),
    Column("wall_s_per_gb", "wall s/GB", places(3)),
    Column("cpu_s_per_gb_2_threads", "CPU, 2 thr", places(3)),
    Column("wall_s_per_gb_2_threads", "wall, 2 thr", places(3)),
    Column("payload_bytes", "payload B", grouped),
    Column("payload_share", "of checkpoint", percent(3)),
    Column("bits_per_change", "bits/change", places(2)),
)


def run(*, quick: bool, mib: int | None = None, directory: Path | None = None) -> Report:
    """Seconds and bytes of each mode at each rate."""
    mib = mib or (QUICK_MIB if quick else MIB)
    steps = Steps(2 * len(RATES) + 1)
    with tempfile.TemporaryDirectory(dir=directory, prefix="dcr-bench-") as folder:
        checkpoint = make_checkpoint(mib, RATES, steps)
        steps("trackers")
        baseline = make_baseline(checkpoint, Path(folder))
        rows: list[Row] = []
        for rate in RATES:
            steps(f"constructing at {100 * rate:g}%")
            checkpoint.move_to(rate)
            rows += _rows(checkpoint, baseline, rate, rounds=1 if quick else ROUNDS)
            checkpoint.move_back(rate)
        steps.end()
        return _report(checkpoint, rows)


def _rows(checkpoint: Checkpoint, baseline: Baseline, rate: float, rounds: int) -> list[Row]:
    """Modes are interleaved round by round on the same candidate."""
    constructions = {mode: Construction(checkpoint, baseline, codec) for mode, codec in CODECS.items()}
    built = {mode: _same_bytes(construction) for mode, construction in constructions.items()}
    costs: dict[tuple[str, int], list[Cost]] = defaultdict(list)
    stages = {mode: StageSeconds() for mode in CODECS}
    for _ in range(rounds):
        for mode, construction in constructions.items():
            with observe.listening(stages[mode]):
                costs[mode, 1].append(timed(construction.run, process_clock))
            costs[mode, 2].append(timed(partial(construction.run, threads=2), process_clock))
    return [
        {
            **_row(checkpoint, rate, built[mode], median(costs[mode, 1])),
            "mode": mode,
            **_two_threads(checkpoint, median(costs[mode, 2])),
            **_stages(checkpoint, stages[mode], rounds),
        }
        for mode in CODECS
    ]


def _same_bytes(construction: Construction) -> Built:
    """What every number of threads builds; also warms compiled code up.

    Raises:
        AssertionError: payloads depend on the threads.
    """
    found = [construction.run(threads=threads) for threads in THREADS]
    assert all(built.digests == found[0].digests for built in found), "payload bytes depend on the threads"
    return found[0]


def _row(checkpoint: Checkpoint, rate: float, built: Built, cost: Cost) -> Row:
    gigabytes = checkpoint.num_bytes / 1e9
    return {
        "rate": checkpoint.rate_of(rate),
        "change": kinds_of([rate])[f"{rate:g}"],
        "cpu_s_per_gb": cost.cpu_s / gigabytes,
        "wall_s_per_gb": cost.wall_s / gigabytes,
        "payload_bytes": built.num_bytes,
        "checkpoint_bytes": checkpoint.num_bytes,
        "payload_share": built.num_bytes / checkpoint.num_bytes,
        "bits_per_change": 8 * built.num_bytes / max(built.num_changed, 1),
        "num_payloads": len(built.digests),
        "same_bytes_for_threads": list(THREADS),
    }


def _two_threads(checkpoint: Checkpoint, cost: Cost) -> Row:
    gigabytes = checkpoint.num_bytes / 1e9
    return {
        "cpu_s_per_gb_2_threads": cost.cpu_s / gigabytes,
        "wall_s_per_gb_2_threads": cost.wall_s / gigabytes,
    }


def _stages(checkpoint: Checkpoint, stages: StageSeconds, rounds: int) -> Row:
    divisor = rounds * checkpoint.num_bytes / 1e9
    per_gb = {name: seconds / divisor for name, seconds in sorted(stages.seconds.items())}
    return {
        "stage_cpu_s_per_gb": per_gb,
        "stages": ", ".join(f"{name} {seconds:.3f}" for name, seconds in per_gb.items()),
    }


def _report(checkpoint: Checkpoint, rows: Sequence[Row]) -> Report:
    return Report(
        bench="construct",
        title="Constructing all payloads of a checkpoint",
        columns=_COLUMNS,
        rows=list(rows),
        setup={
            "checkpoint_bytes": checkpoint.num_bytes,
            "num_tensors": len(checkpoint.specs),
            "changes": kinds_of(RATES),
        },
        notes=[
            *(f"{row['mode']} {100 * row['rate']:.2f}%, CPU s/GB by stage: {row['stages']}" for row in rows),
            f"the payload bytes of every row were equal for {' and '.join(map(str, THREADS))} threads",
            "medians; stages: of one thread, without those inside them; the rest lies between them",
        ],
    )
