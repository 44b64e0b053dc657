"""What a benchmark found: rows for programs, a table for people, and what was measured beside them."""

import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import Console

Row: TypeAlias = dict[str, Any]
Format: TypeAlias = Callable[[Any], str]

_FILE_COLUMNS = 160
_PACKAGES = ("numpy", "numba", "torch", "zstandard")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the printed table: the row's key, its heading, and how a figure is written."""

    key: str
    heading: str
    format: Format = str


@dataclass(frozen=True, slots=True)
class Report:
    """One benchmark's result. ``setup`` says what was measured; ``notes`` are lines under the table."""

    bench: str
    title: str
    columns: Sequence[Column]
    rows: list[Row]
    setup: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    extra: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        """One object: ``rows`` are stable for programs (DESIGN section 9), further keys may come."""
        head = {"bench": self.bench, "machine": machine(), "setup": self.setup}
        return json.dumps({**head, "rows": self.rows, **self.extra, "notes": self.notes}, indent=2)


def machine() -> dict[str, Any]:
    """Where and with what the figures were measured, as far as it matters."""
    return {
        "processor": _processor(),
        "num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_1min": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def show(report: Report) -> None:
    """Print the table and the lines under it."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:  # a file has no width; tables are not to be folded there
        console.width = _FILE_COLUMNS
    _table(report, console)
    for note in report.notes:
        console.print(f"  {note}", markup=False, soft_wrap=True)
    found = machine()
    console.print(
        f"  {found['processor']}, {found['num_cpus']} cpus, load {found['load_1min']}",
        markup=False,
        soft_wrap=True,
    )


def _table(report: Report, console: "Console") -> None:
    from rich.table import Table

    table = Table(title=report.title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in report.columns:
        words = all(isinstance(row.get(column.key), str) for row in report.rows)
        table.add_column(column.heading, justify="left" if words else "right", no_wrap=True)
    for row in report.rows:
        table.add_row(*(_cell(row, column) for column in report.columns))
    console.print(table)


def _cell(row: Mapping[str, Any], column: Column) -> str:
    value = row.get(column.key)
    return "-" if value is None else column.format(value)


def places(number: int, *, suffix: str = "") -> Format:
    """Format with ``number`` digits behind the point.

    >>> places(2, suffix="x")(1.666)
    '1.67x'
    """
    return lambda value: f"{value:.{number}f}{suffix}"


def percent(number: int) -> Format:
    """Format a share as percent with ``number`` digits behind the point.

    >>> percent(1)(0.0125)
    '1.2%'
    """
    return lambda value: f"{100 * value:.{number}f}%"


def grouped(value: Any) -> str:
    """A count with separators.

    >>> grouped(1234567)
    '1,234,567'
    """
    return f"{value:,}"


class Steps:
    """Says on stderr what is being done, one line a step; a terminal's line is replaced."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._done = 0
        self._terminal = sys.stderr.isatty()

    def __call__(self, what: str) -> None:
        """Begin the next step."""
        self._done += 1
        line = f"[{self._done}/{max(self._num_steps, self._done)}] {what}"
        if self._terminal:
            print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)

    def note(self, what: str) -> None:
        """Say what was found, on a line of its own that stays."""
        self.end()
        print(f"  {what}", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Clear the line."""
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
