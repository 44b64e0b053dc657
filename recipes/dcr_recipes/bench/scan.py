"""Change detection against the memory-read ceiling of the same run (paper section 5, DESIGN R2).

GB are of candidate bytes; the baseline is read as well. Rates are per wall second of a machine that
does nothing else: bytes over (CPU seconds of all threads / threads).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

import numpy as np

from dcr_recipes.bench.ceilings import in_threads, parts, xor_sum
from dcr_recipes.bench.data import Words, positions
from dcr_recipes.bench.report import Column, Report, Row, Steps, percent, places
from dcr_recipes.bench.scan_kernels import KERNELS, Kernel
from dcr_recipes.bench.timing import Cost, interleaved, process_clock

RATES = (0.001, 0.01, 0.03, 0.05)
THREADS = (1, 2)
MIB = 256
QUICK_MIB = 2
ROUNDS = 11
_SEED = 0
_CEILING = "ceiling"

Work: TypeAlias = Callable[[], object]

_COLUMNS = (
    Column("rate", "changed", percent(1)),
    Column("kernel", "kernel"),
    Column("threads", "threads"),
    Column("gb_per_s", "GB/s", places(2)),
    Column("ceiling_gb_per_s", "ceiling GB/s", places(2)),
    Column("share_of_ceiling", "of ceiling", percent(0)),
    Column("wall_gb_per_s", "wall GB/s", places(2)),
)


def run(*, quick: bool, mib: int | None = None) -> Report:
    """GB/s of each kernel by rate and threads."""
    mib = mib or (QUICK_MIB if quick else MIB)
    rounds = 1 if quick else ROUNDS
    baseline = _baseline(mib)
    steps = Steps(len(RATES))
    rows: list[Row] = []
    with ThreadPoolExecutor(max(THREADS)) as pool:
        for rate in RATES:
            steps(f"{100 * rate:g}% changed")
            candidate = _candidate(baseline, rate)
            costs = interleaved(_works(candidate, baseline, pool), rounds=rounds, clock=process_clock)
            rows += _rows(rate, candidate.nbytes, costs)
    steps.end()
    return Report(
        bench="scan",
        title="Finding changed BF16 words",
        columns=_COLUMNS,
        rows=rows,
        setup={"candidate_mib": mib, "rounds": rounds, "seed": _SEED, "pattern": "uniform"},
        notes=[
            "ceiling: sum(a ^ b) over the same two arrays, as many threads, in the same rounds",
            "GB/s: candidate bytes / (CPU s of all threads / threads), medians; other users slow the wall",
        ],
    )


def _baseline(mib: int) -> Words:
    rng = np.random.default_rng(_SEED)
    return rng.integers(0, 1 << 64, (mib << 20) // 8, dtype=np.uint64).view(np.uint16)


def _candidate(baseline: Words, rate: float) -> Words:
    rng = np.random.default_rng((_SEED, round(rate * 1e4)))
    candidate = baseline.copy()
    candidate[positions(rng, baseline.size, rate, "uniform")] ^= np.uint16(1)
    return candidate


def _works(candidate: Words, baseline: Words, pool: ThreadPoolExecutor) -> dict[str, Work]:
    works: dict[str, Work] = {}
    for threads in THREADS:
        works[f"{_CEILING} {threads}"] = partial(_read, candidate, baseline, threads, pool)
        for name, kernel in KERNELS.items():
            works[f"{name} {threads}"] = partial(_scan, kernel, candidate, baseline, threads)
    return works


def _read(candidate: Words, baseline: Words, threads: int, pool: ThreadPoolExecutor) -> None:
    left, right, total = candidate.view(np.uint64), baseline.view(np.uint64), xor_sum()
    in_threads(lambda part: total(left[part], right[part]), parts(left.size, threads), pool)


def _scan(kernel: Kernel, candidate: Words, baseline: Words, threads: int) -> None:
    kernel(candidate, baseline, threads)


def _rows(rate: float, num_bytes: int, costs: dict[str, Cost]) -> list[Row]:
    rows = []
    for threads in THREADS:
        ceiling = _rate(num_bytes, costs[f"{_CEILING} {threads}"], threads)
        for name in KERNELS:
            cost = costs[f"{name} {threads}"]
            found = _rate(num_bytes, cost, threads)
            rows.append(
                {
                    "rate": rate,
                    "kernel": name,
                    "threads": threads,
                    "gb_per_s": found,
                    "ceiling_gb_per_s": ceiling,
                    "share_of_ceiling": found / ceiling,
                    "wall_gb_per_s": num_bytes / 1e9 / cost.wall_s,
                }
            )
    return rows


def _rate(num_bytes: int, cost: Cost, threads: int) -> float:
    return num_bytes / 1e9 / max(cost.cpu_s / threads, 1e-9)
