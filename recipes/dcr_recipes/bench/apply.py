"""Applying changes to resident storage, beside what touching those places costs (DESIGN section 8).

Runtime ``hf`` runs here; ``vllm`` runs in the interpreter of its lane, one process a rank.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcr.errors import ConfigError
from dcr_recipes.bench.apply_ways import LEARNED
from dcr_recipes.bench.report import Column, Report, Row, Steps, grouped, percent, places

RATES = (0.01, 0.03)
ROUNDS = 5
MODELS = {"hf": ("dense",), "vllm": ("dense", "moe")}
"""By runtime; the packed transformers model has no experts by name."""
_TPS = {"hf": (1,), "vllm": (1, 2)}

_COLUMNS = (
    Column("runtime", "runtime"),
    Column("model", "model"),
    Column("tp", "TP"),
    Column("rate", "changed", percent(2)),
    Column("method", "method"),
    Column("cpu_s", "CPU s", places(4)),
    Column("ratio_to_learned", "to learned set", places(2, suffix="x")),
    Column("ns_per_write", "ns/write", places(1)),
    Column("num_writes", "writes", grouped),
)


@dataclass(frozen=True, slots=True)
class Case:
    """What to measure. ``python`` is the lane's interpreter, where the runtime is not ``hf``."""

    runtime: str
    model: str
    tp: int
    rates: tuple[float, ...] = RATES
    python: Path | None = None
    quick: bool = False

    @property
    def rounds(self) -> int:
        """Timed rounds."""
        return 1 if self.quick else ROUNDS


@dataclass(frozen=True, slots=True)
class Choice:
    """What a person asked for; None stands for all that the runtime has."""

    runtime: str
    models: Sequence[str] | None = None
    tps: Sequence[int] | None = None
    rates: Sequence[float] | None = None
    python: Path | None = None


def cases_of(choice: Choice, *, quick: bool) -> list[Case]:
    """One case a model and degree.

    Raises:
        ConfigError: the runtime has no such model or degree.
    """
    runtime = choice.runtime
    models, tps = choice.models or MODELS[runtime], choice.tps or _TPS[runtime]
    if unknown := set(models) - set(MODELS[runtime]):
        raise ConfigError(f"runtime {runtime} has no model {sorted(unknown)}; it has {MODELS[runtime]}")
    if runtime == "hf" and set(tps) != {1}:
        raise ConfigError("runtime hf holds the whole model in one rank; give --tp 1 or --runtime vllm")
    rates = tuple(choice.rates or RATES)
    return [Case(runtime, model, tp, rates, choice.python, quick) for model in models for tp in tps]


def run(cases: Sequence[Case]) -> Report:
    """CPU seconds of every method in every case.

    Raises:
        ConfigError: a runtime or its lane is missing.
        IntegrityError: a method does not leave the bits of a dense load.
    """
    steps = Steps(len(cases))
    rows: list[Row] = []
    learning: list[Row] = []
    for case in cases:
        steps(f"{case.runtime}, {case.model}, TP={case.tp}")
        for result in _hf(case) if case.runtime == "hf" else _lane(case):
            rows += _rows(case, result)
            learning += [_learning(case, number, found) for number, found in enumerate(result["ranks"])]
    steps.end()
    return Report(
        bench="apply",
        title="Applying changes to resident weights",
        columns=_COLUMNS,
        rows=rows,
        setup={"cases": [f"{case.runtime}, {case.model}, TP={case.tp}" for case in cases]},
        notes=[
            "ceiling: floor, writing the changed elements at destinations known beforehand",
            "CPU s: medians, summed over the ranks; every method ended in the bits of a dense load",
            *_in_words(learning),
        ],
        extra={"learning": learning},
    )


def _hf(case: Case) -> Iterator[dict[str, Any]]:
    from dcr_recipes.bench.hf_rank import results

    return results(case.model, case.rates, rounds=case.rounds, quick=case.quick)


def _lane(case: Case) -> list[dict[str, Any]]:
    python = _required(case.python) if case.python else default_python()
    words = ["--model", case.model, "--tp", str(case.tp), "--rounds", str(case.rounds)]
    words += ["--rates", *(str(rate) for rate in case.rates), *(["--quick"] if case.quick else [])]
    done = subprocess.run(
        [str(python), "-m", "dcr_recipes.bench.vllm_ranks", *words], stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise ConfigError(f"the vllm ranks ended with code {done.returncode}; their error is above")
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _required(python: Path) -> Path:
    if not os.access(python, os.X_OK) or not python.is_file():
        raise ConfigError(f"--python: {python} is no program; give the Python of a lane, or leave it out")
    return python


def default_python() -> Path:
    """The interpreter of the lane ``vllm``, beside this one's environment.

    Raises:
        ConfigError: the lane has not been built.
    """
    python = Path(sys.prefix).parent / ".venv-vllm" / "bin" / "python"
    if not python.exists():
        raise ConfigError(f"{python} does not exist; run 'make setup-vllm', or give --python FILE")
    return python


def _rows(case: Case, result: dict[str, Any]) -> list[Row]:
    ranks = result["ranks"]
    num_writes = sum(rank["num_writes"] for rank in ranks)
    cpu_s = {method: sum(rank["cpu_s"][method] for rank in ranks) for method in ranks[0]["cpu_s"]}
    return [
        {
            "runtime": case.runtime,
            "model": case.model,
            "tp": case.tp,
            "method": method,
            "rate": result["rate"],
            "cpu_s": seconds,
            "ratio_to_learned": seconds / max(cpu_s[LEARNED], 1e-9),
            "ns_per_write": 1e9 * seconds / max(num_writes, 1),
            "num_writes": num_writes,
        }
        for method, seconds in cpu_s.items()
    ]


def _learning(case: Case, rank: int, found: dict[str, Any]) -> Row:
    head = {"runtime": case.runtime, "model": case.model, "tp": case.tp, "rank": rank}
    return {**head, **found["learning"]}


def _in_words(learning: Sequence[Row]) -> list[str]:
    lines = {
        f"learning, {row['runtime']} {row['model']} TP={row['tp']} rank {row['rank']}: "
        f"{row['us_per_tensor']:.0f} us (median {row['median_us_per_tensor']:.0f}) "
        f"and {row['map_bytes_per_tensor']:.0f} B of map a tensor, "
        f"{row['num_tensors']} tensors, {100 * row['learned_share']:.2f}% of bytes learned": None
        for row in learning
    }
    return list(lines)
