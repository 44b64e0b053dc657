"""What a person sees while a run works: a line per step, and on a terminal a picture below them."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from dcr_recipes.launch.figures import reward, size
from dcr_recipes.launch.live import Picture, ProcessState, render
from dcr_recipes.summary import MetricsLog, Row, diverged

_HEADER = (
    f"{'step':>7} {'reward':>8} {'changed':>9} {'sent':>9} {'of dense':>9} {'refit':>8} {'version':>8}"
    f" {'differing':>10}"
)
_PICTURE_S = 0.25
_LEADER = "owner-0"
"""Whose phases are told, as lines, until the first step is done."""


def step_line(row: Row, num_steps: int) -> str:
    """One step's figures, aligned under the header."""
    changed = row["refit/changed_fraction"]
    differing = row.get("verify/differing_bits")
    cells = (
        f"{row['step']}/{num_steps}".rjust(7),
        f"{reward(row['reward/mean']):>8}",
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
    """Follows a metrics file and prints each step once, also if the file is cut back and grows again.

    ``look`` tells how the processes are; on a terminal they are shown, else only the phases of the
    trainer up to its first step are printed.
    """

    def __init__(
        self,
        metrics: Path,
        num_steps: int,
        console: Console,
        look: Callable[[], Sequence[ProcessState]] = tuple,
    ) -> None:
        self._metrics = MetricsLog(metrics)
        self._num_steps = num_steps
        self._console = console
        self._look = look
        self._row: Row | None = None
        self._first = self._shown = len(self._metrics.rows())
        self._size = -1
        self._start = self._first_step_at = self._last_step_at = time.monotonic()
        self._next_picture_at = 0.0
        self._phase = ""
        self._told_diverged = False
        self._live = (
            Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        )

    def __enter__(self) -> "Progress":
        if self._shown:
            self._console.print(f"continuing after step {self._shown}", highlight=False)
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self) -> None:
        """Print the steps that are new since the last call, and bring the picture up to date."""
        self._print_rows()
        if self._live is not None:
            self._refresh(self._live)
        elif self._shown == self._first:
            self._print_phase()

    def tell(self, line: str) -> None:
        """Print a remark of the driver, for example a restart."""
        self._console.print(line, highlight=False, style="yellow", soft_wrap=True)

    def _print_rows(self) -> None:
        path = self._metrics.path
        grown = path.stat().st_size if path.exists() else -1
        if grown == self._size:
            return
        self._size = grown
        for row in self._metrics.rows()[self._shown :]:
            if self._shown == self._first:
                self._console.print(_HEADER, highlight=False)
            self._console.print(step_line(row, self._num_steps), highlight=False)
            self._tell_diverged(row)
            self._row = row
            self._shown += 1
            self._last_step_at = time.monotonic()
            if self._shown == self._first + 1:
                self._first_step_at = self._last_step_at

    def _tell_diverged(self, row: Row) -> None:
        """Say once that the training has diverged, of the first step that shows it."""
        if not self._told_diverged and (words := diverged(row)):
            self._told_diverged = True
            self.tell(words)

    def _refresh(self, live: Live) -> None:
        now = time.monotonic()
        if now >= self._next_picture_at:
            self._next_picture_at = now + _PICTURE_S
            live.update(render(self._picture()), refresh=True)

    def _print_phase(self) -> None:
        phase = next((process.phase for process in self._look() if process.name == _LEADER), "")
        if phase and phase != self._phase:
            passed = time.monotonic() - self._start
            self._console.print(f"{passed:>5.1f} s  {_LEADER}: {phase}", highlight=False)
        self._phase = phase

    def _picture(self) -> Picture:
        return Picture(
            num_done=self._shown,
            num_steps=self._num_steps,
            elapsed_s=time.monotonic() - self._start,
            step_s=self._step_seconds(),
            row=self._row,
            processes=self._look(),
        )

    def _step_seconds(self) -> float | None:
        """Mean over the steps seen but the first, which start-up belongs to."""
        seen = self._shown - self._first
        return (self._last_step_at - self._first_step_at) / (seen - 1) if seen > 1 else None
