"""Modes X, P and F of the paper's Table 3: what direct projection and differences are worth.

X projects directly and sends differences, P projects directly and sends absolute values, F gathers and
converts every tensor and sends absolute values. All owners of one tensor-parallel world run one after
another on the same candidate; what they digest is compared, so that every mode is proven to send the
same change. GB are of the canonical checkpoint.
"""

import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dcr import observe
from dcr.audit import combine
from dcr.config import CodecConfig
from dcr.model import AuditTable
from dcr.source import Baseline
from dcr.source.ports import ShardSource
from dcr.source.shares import OwnedShards
from dcr_recipes.bench.construct_model import kinds_of, total_elements
from dcr_recipes.bench.construct_path import AUDIT_KEY, Construction
from dcr_recipes.bench.fused_model import FullyConverted, FusedModel, Projected, make_model
from dcr_recipes.bench.payloads import PLANES, PUBLISHED
from dcr_recipes.bench.report import Column, Report, Row, Steps, grouped, percent, places
from dcr_recipes.bench.stages import StageSeconds
from dcr_recipes.bench.timing import process_clock, timed

RATES = (0.01, 0.03, 0.05)
QUICK_RATES = (0.03,)
MIB = 1024
QUICK_MIB = 1
TP = 4
ROUNDS = 5
MODES = ("X", "P", "F")
CODECS = {"planes": PLANES, "published": PUBLISHED}

_COLUMNS = (
    Column("codec", "codec"),
    Column("rate", "changed", percent(2)),
    Column("change", "changes"),
    Column("mode", "mode"),
    Column("cpu_s_per_gb", "CPU s/GB", places(3)),
    Column("time_ratio", "time / P", places(3)),
    Column("slowest_s", "slowest owner, s", places(3)),
    Column("slowest_ratio", "/ P", places(3)),
    Column("payload_bytes", "payload B", grouped),
    Column("payload_ratio", "bytes / P", places(3)),
)
Owners: TypeAlias = Sequence[tuple[ShardSource, Baseline]]
"""What every owner of one way of converting reads and compares with, by rank."""


@dataclass(slots=True)
class _Found:
    """Of one mode: CPU seconds of every owner by round, and what the owners built."""

    seconds: list[list[float]]
    payload_bytes: int
    num_changed: int

    @property
    def total_s(self) -> float:
        return statistics.median(sum(each) for each in self.seconds)

    @property
    def slowest_s(self) -> float:
        return statistics.median(max(each) for each in self.seconds)


def run(*, quick: bool, mib: int | None = None, tp: int = TP, directory: Path | None = None) -> Report:
    """Seconds and bytes of each mode, codec and rate, and their ratios to P."""
    rates = QUICK_RATES if quick else RATES
    steps = Steps(2 * len(rates) + 1)
    model = make_model(mib or (QUICK_MIB if quick else MIB), tp, rates, steps)
    with tempfile.TemporaryDirectory(dir=directory, prefix="dcr-bench-") as folder:
        steps("trackers")
        direct = _owners(model, Path(folder) / "direct", full=False)
        owners = {"X": direct, "P": direct, "F": _owners(model, Path(folder) / "full", full=True)}
        rows: list[Row] = []
        for rate in rates:
            steps(f"constructing at {100 * rate:g}%")
            model.move_to(rate)
            for codec in CODECS:
                rows += _rows(model, owners, (rate, codec), rounds=1 if quick else ROUNDS)
            model.move_back(rate)
        steps.end()
    return _report(model, rows)


def _owners(model: FusedModel, folder: Path, *, full: bool) -> Owners:
    """Sources and trackers of version 0."""
    found = []
    for rank in range(model.num_ranks):
        source: ShardSource = (
            FullyConverted(model, rank) if full else OwnedShards(Projected(model, rank), rank)
        )
        path = folder / str(rank)
        found.append((source, Baseline.create(path, source.tasks(), source.read, audit_key=AUDIT_KEY)))
    return found


def _rows(
    model: FusedModel, owners: Mapping[str, Owners], case: tuple[float, str], *, rounds: int
) -> list[Row]:
    """``case`` is rate and codec. Modes are interleaved, each round beginning one further on."""
    rate, codec = case
    works = {mode: _constructions(owners[mode], mode, CODECS[codec]) for mode in MODES}
    found = {mode: _first(works[mode]) for mode in MODES}
    _require_equal({mode: audit for mode, (_, audit) in found.items()})
    stages: dict[str, StageSeconds] = defaultdict(StageSeconds)
    for turn in range(rounds):
        for mode in (MODES[(turn + step) % len(MODES)] for step in range(len(MODES))):
            with observe.listening(stages[mode]):
                found[mode][0].seconds.append([timed(work.run, process_clock).cpu_s for work in works[mode]])
    base = found["P"][0]
    return [
        {
            "codec": codec,
            "change": kinds_of([rate])[f"{rate:g}"],
            "mode": mode,
            **_figures(model, found[mode][0], base),
            "stage_cpu_s_per_gb": _per_gb(model, stages[mode], rounds),
        }
        for mode in MODES
    ]


def _constructions(owners: Owners, mode: str, codec: CodecConfig) -> list[Construction]:
    return [Construction(source, baseline, codec, overwrite_only=mode != "X") for source, baseline in owners]


def _first(works: Sequence[Construction]) -> tuple[_Found, AuditTable]:
    """What all owners build, and the candidate's digests; also warms compiled code up."""
    built = [work.run() for work in works]
    parts = defaultdict(list)
    for each in built:
        for name, digest in each.audit.items():
            parts[name].append(digest)
    audit = {name: combine(*digests) for name, digests in parts.items()}
    return _Found([], sum(b.num_bytes for b in built), sum(b.num_changed for b in built)), audit


def _require_equal(audits: Mapping[str, AuditTable]) -> None:
    """Raises AssertionError if two modes differ about a bit of the candidate."""
    for mode, audit in audits.items():
        assert audit == audits["P"], f"mode {mode} found another candidate than P"


def _figures(model: FusedModel, found: _Found, base: _Found) -> Row:
    elements = total_elements(model.specs)
    return {
        "rate": found.num_changed / elements,
        "cpu_s_per_gb": found.total_s / (2 * elements / 1e9),
        "time_ratio": found.total_s / base.total_s,
        "slowest_s": found.slowest_s,
        "slowest_ratio": found.slowest_s / base.slowest_s,
        "payload_bytes": found.payload_bytes,
        "payload_ratio": found.payload_bytes / base.payload_bytes,
    }


def _per_gb(model: FusedModel, stages: StageSeconds, rounds: int) -> dict[str, float]:
    divisor = rounds * 2 * total_elements(model.specs) / 1e9
    return {name: seconds / divisor for name, seconds in sorted(stages.seconds.items())}


def _report(model: FusedModel, rows: Sequence[Row]) -> Report:
    return Report(
        bench="construct-modes",
        title=f"Direct projection and differences against full conversion, {model.num_ranks} owners",
        columns=_COLUMNS,
        rows=list(rows),
        setup={
            "checkpoint_bytes": 2 * total_elements(model.specs),
            "num_tensors": len(model.specs),
            "tp": model.num_ranks,
            "changes": kinds_of(tuple(model.changes)),
        },
        notes=[
            *(_ratios(rows[at : at + len(MODES)]) for at in range(0, len(rows), len(MODES))),
            "paper, 3% and 5%: P is 1.08 to 1.16x as fast as F; X payload 38 to 40% below P, time +7 to +13%",
            *(_stages(row) for row in rows),
            "every mode digested the same candidate; CPU seconds of one thread, medians; F gathers but once",
        ],
    )


def _ratios(rows: Sequence[Row]) -> str:
    by_mode = {row["mode"]: row for row in rows}
    x, f = by_mode["X"], by_mode["F"]
    return (
        f"{x['codec']} {100 * x['rate']:.2f}%: P is {f['time_ratio']:.2f}x as fast as F (slowest owner "
        f"{f['slowest_ratio']:.2f}x); X payload {100 * (1 - x['payload_ratio']):.0f}% below P, time "
        f"{100 * (x['time_ratio'] - 1):+.0f}%"
    )


def _stages(row: Row) -> str:
    stages = ", ".join(f"{name} {seconds:.3f}" for name, seconds in row["stage_cpu_s_per_gb"].items())
    return f"{row['codec']} {100 * row['rate']:.2f}% {row['mode']}, CPU s/GB by stage: {stages}"
