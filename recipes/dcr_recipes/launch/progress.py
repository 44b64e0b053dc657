"""What a person sees while a run works: one line per step, and a status line on a terminal."""

from pathlib import Path

from rich.console import Console

from dcr_recipes.summary import MetricsLog, Row

_HEADER = (
    f"{'step':>7} {'reward':>8} {'changed':>9} {'sent':>9} {'of dense':>9} {'refit':>8} {'version':>8}"
    f" {'differing':>10}"
)


def size(num_bytes: float) -> str:
    """``num_bytes`` in the decimal unit that keeps it short."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


def step_line(row: Row, num_steps: int) -> str:
    """One step's figures, aligned under the header."""
    changed = row["refit/changed_fraction"]
    differing = row.get("verify/differing_bits")
    cells = (
        f"{row['step']}/{num_steps}".rjust(7),
        f"{row['reward/mean']:>8.4f}",
        f"{100 * changed:>8.3f}%",
        f"{size(row['refit/payload_bytes']):>9}",
        f"{size(row['refit/dense_bytes']):>9}",
        f"{_seconds(row['refit/seconds']):>8}",
        f"v{row['version']}".rjust(8),
        ("-" if differing is None else f"{differing} bits").rjust(10),
    )
    return " ".join(cells) + ("  nothing changed" if changed == 0 else "")


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"  # None: a crash came between commit and its report


class Progress:
    """Follows a metrics file and prints each step once, also if the file is cut back and grows again."""

    def __init__(self, metrics: Path, num_steps: int, console: Console) -> None:
        self._metrics = MetricsLog(metrics)
        self._num_steps = num_steps
        self._console = console
        self._shown = len(self._metrics.rows())
        self._size = -1
        self._status = console.status("starting the processes") if console.is_terminal else None

    def __enter__(self) -> "Progress":
        if self._shown:
            self._console.print(f"continuing after step {self._shown}", highlight=False)
        self._console.print(_HEADER, highlight=False)
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self) -> None:
        """Print the steps that are new since the last call."""
        path = self._metrics.path
        grown = path.stat().st_size if path.exists() else -1
        if grown == self._size:
            return
        self._size = grown
        for row in self._metrics.rows()[self._shown :]:
            self._console.print(step_line(row, self._num_steps), highlight=False)
            self._shown += 1
        if self._status is not None:
            self._status.update(f"step {self._shown + 1} of {self._num_steps}")

    def tell(self, line: str) -> None:
        """Print a remark of the driver, for example a restart."""
        self._console.print(line, highlight=False, style="yellow", soft_wrap=True)
