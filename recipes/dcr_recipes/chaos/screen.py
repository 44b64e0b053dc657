"""What a person sees while a chaos run works: a bar on a terminal, else a line now and then."""

import time
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_LINE_S = 15.0
_FASTEST_S = 0.25


@dataclass(slots=True)
class Screen:
    """``say`` prints a line; ``show`` keeps one picture up to date. Also a context manager."""

    console: Console
    _bar: Progress = field(init=False)
    _task: TaskID = field(init=False)
    _shown_at: float = -_LINE_S

    def __post_init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=self.console, transient=True)
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> "Screen":
        if self.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, line: str) -> None:
        """A remark that stays."""
        self.console.print(line, highlight=False, soft_wrap=True)

    def show(self, what: str, done: float, total: float) -> None:
        """``what`` is going on, ``done`` of ``total``."""
        now = time.monotonic()
        if now - self._shown_at < (_FASTEST_S if self.console.is_terminal else _LINE_S):
            return
        self._shown_at = now
        if self.console.is_terminal:
            self._bar.update(self._task, description=what, completed=min(done, total), total=total)
        else:
            self.say(f"{100 * min(done / max(total, 1e-9), 1):3.0f}%  {what}")
