"""A set of processes that is kept alive: restarts, a budget for them, and a clean end."""

import contextlib
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcr_recipes.errors import RunFailed
from dcr_recipes.launch.group import end_group
from dcr_recipes.launch.memory import peak_rss_bytes
from dcr_recipes.launch.starting import Process, Spec, Starter
from dcr_recipes.processes.border import EXIT_FATAL

__all__ = ["Spec", "State", "Supervisor"]

_TAIL_LINES = 8
_TERM_GRACE_S = 5.0


@dataclass(frozen=True, slots=True)
class State:
    """One process: whether it runs, and how often it was started anew."""

    name: str
    is_alive: bool
    num_restarts: int


@dataclass(slots=True)
class _Child:
    spec: Spec
    incarnation: int = 0
    process: Process | None = None
    peak_bytes: int = 0

    @property
    def is_alive(self) -> bool:
        """Whether it has not been seen to end; one that is not started yet is about to be."""
        return self.process is None or self.process.poll() is None

    @property
    def died(self) -> bool:
        """Whether it ended in a way that needs a restart."""
        if self.process is None or self.process.poll() is None:
            return False
        return not (self.spec.finishes and self.process.returncode == 0)

    @property
    def finished(self) -> bool:
        """Whether it has ended with success."""
        return self.process is not None and self.process.poll() == 0


class Supervisor:
    """Owns the children of one driver. All methods are called from the driver's main thread.

    The kernel kills a child when the thread that started it ends, hence one thread for all.
    """

    def __init__(self, specs: Sequence[Spec], logs: Path, *, max_restarts: int, lock: int = -1) -> None:
        """``logs`` is an existing folder; ``lock`` a descriptor that every child inherits (-1: none)."""
        self._children = [_Child(spec) for spec in specs]
        self._logs = logs
        self._left = max_restarts
        self._max_restarts = max_restarts
        self._starter = Starter(specs, logs, lock=lock)

    def start(self) -> None:
        """Start every process, or the warm one that forks it: the next polls then start these."""
        self._starter.open()
        self._begin()

    def poll(self) -> list[str]:
        """Start what waited, restart what has died; returns one line per death, to be shown.

        Raises:
            RunFailed: a process ended for good, or the restart budget is spent.
        """
        self._begin()
        for child in self._children:
            if child.process is not None:
                child.peak_bytes = max(child.peak_bytes, peak_rss_bytes(child.process.pid))
        return [self._recover(child) for child in self._children if child.died]

    def peak_rss(self) -> dict[str, int]:
        """Most resident bytes of each process over all its starts, by name, as of the last ``poll``."""
        return {child.spec.name: child.peak_bytes for child in self._children}

    @property
    def done(self) -> bool:
        """Whether every process that finishes has finished."""
        return all(child.finished for child in self._children if child.spec.finishes)

    def pids(self) -> dict[str, int]:
        """Process id of each child that was started and has not been seen to end, by name."""
        running = [c for c in self._children if c.process is not None and c.process.poll() is None]
        return {c.spec.name: c.process.pid for c in running if c.process is not None}

    def states(self) -> list[State]:
        """How each child is, in starting order."""
        return [State(c.spec.name, c.is_alive, max(0, c.incarnation - 1)) for c in self._children]

    @property
    def num_restarts(self) -> int:
        """Deaths that were repaired so far."""
        return self._max_restarts - self._left

    def stop(self) -> None:
        """Ask all to end, then end them; returns when none is left. Idempotent."""
        self._starter.close()
        alive = [c.process for c in self._children if c.process is not None and c.process.poll() is None]
        for process in alive:
            process.terminate()
        deadline = time.monotonic() + _TERM_GRACE_S
        for process in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        _kill([c.process for c in self._children if c.process is not None])

    def _recover(self, child: _Child) -> str:
        assert child.process is not None
        code = child.process.wait()
        how = _how(code)
        if code == EXIT_FATAL:
            raise RunFailed(f"{child.spec.name}: {self._last_words(child)}")
        if self._left == 0:
            raise RunFailed(
                f"{child.spec.name} {how} and the budget of {self._max_restarts} restarts"
                f" (faults.max_restarts) is spent; end of {self._log(child)}:\n{self._tail(child)}"
            )
        self._left -= 1
        group = [other for other in self._children if other.spec.group == child.spec.group]
        _kill([other.process for other in group if other.process is not None])
        for other in group:
            self._spawn(other)
        again = "restarted" if len(group) == 1 else f"restarted all {len(group)} of {child.spec.group}"
        return f"{child.spec.name} {how}; {again} (log: {self._log(child)})"

    def _begin(self) -> None:
        """Start what was never started, unless it waits for a warm process."""
        for child in self._children:
            if child.process is None and self._starter.is_due(child.spec):
                self._spawn(child)

    def _spawn(self, child: _Child) -> None:
        child.incarnation += 1
        with self._log(child).open("ab") as log:
            log.write(f"--- {child.spec.name}, start {child.incarnation}\n".encode())
            log.flush()
            child.process = self._starter.start(child.spec, child.incarnation, log)

    def _log(self, child: _Child) -> Path:
        return self._logs / f"{child.spec.name}.log"

    def _tail(self, child: _Child) -> str:
        with self._log(child).open(errors="replace") as log:
            return "".join(f"  {line}" for line in deque(log, _TAIL_LINES)).rstrip()

    def _last_words(self, child: _Child) -> str:
        """Its own last error; libraries may have said something after it."""
        with self._log(child).open(errors="replace") as log:
            lines = [line.strip() for line in log if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines)[-1].removeprefix("error: ")


def _kill(processes: Sequence[Process]) -> None:
    """End them and all that they started."""
    for process in processes:
        if process.poll() is None:
            process.kill()
        end_group(process.pid)
    for process in processes:
        process.wait()


def _how(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"exited with code {code}"
