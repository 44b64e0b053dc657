"""What ``dcr log`` says of the time that each version took, from the run's metrics."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dcr_recipes.summary import MetricsLog, Row
from dcr_recipes.trace.accounting import BOUNDS

HEADINGS: Mapping[str, str] = {
    "latency_s": "latency ms",
    "construction_s": "construction",
    "transport_s": "transport",
    "finalization_s": "finalization",
}
"""Column of a version's row -> heading; the lower bounds are explained in ``docs/run-folder.md``."""


def add_bounds(rows: Sequence[Row], metrics: Path) -> None:
    """Add latency, bounds and finalization to the rows of the versions that ``metrics`` knows; None else."""
    known = {row["version"]: row for row in MetricsLog(metrics).rows()}
    for row in rows:
        of = known.get(row["version"], {})
        row |= {name: of.get(f"{BOUNDS}{name}") for name in HEADINGS}


def shown(rows: Sequence[Row]) -> list[str]:
    """Names of the columns that any version has a figure for."""
    return [name for name in HEADINGS if any(row.get(name) is not None for row in rows)]


def cells(row: Row, names: Sequence[str]) -> list[str]:
    """Milliseconds, or a dash, for each of ``names``."""
    return ["-" if row.get(name) is None else f"{1000 * row[name]:.0f}" for name in names]
