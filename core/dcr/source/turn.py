"""One long operation of an owner at a time, and how a later attempt ends an earlier one (DESIGN P6)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dcr.errors import AttemptFailed, Conflict
from dcr.model import AttemptId


@dataclass(slots=True)
class _Running:
    attempt: AttemptId
    cancelled: bool = False


class Turn:
    """Guards an owner's trackers. ``changed`` is the owner's condition; waits end after ``deadline_s``."""

    def __init__(self, changed: threading.Condition, deadline_s: float) -> None:
        self._changed = changed
        self._deadline_s = deadline_s
        self._running: _Running | None = None
        self._fenced: AttemptId | None = None
        self._stopped = -1  # highest attempt number that was told to stop

    @property
    def fenced(self) -> AttemptId | None:
        """The attempt that is obeyed."""
        return self._fenced

    def obey(self, attempt: AttemptId) -> AttemptId | None:
        """Obey ``attempt`` from now on and tell earlier work to stop; returns what was obeyed before.

        Raises:
            Conflict: a later attempt is obeyed already.
        """
        with self._changed:
            before = self._fenced
            if before is not None and attempt.number < before.number:
                raise Conflict(f"attempt {attempt} was replaced by {before}")
            self._fenced = attempt
            self.cancel(lambda running: running.number < attempt.number)
            return before

    def stop(self, attempt: AttemptId) -> bool:
        """Let nothing of ``attempt`` begin or go on; false if it was replaced already."""
        with self._changed:
            if self._fenced is not None and attempt.number < self._fenced.number:
                return False
            self._stopped = max(self._stopped, attempt.number)
            self.cancel(lambda running: running.number <= attempt.number)
            return True

    def cancel(self, concerns: Callable[[AttemptId], bool]) -> None:
        """Ask the running operation to end at its next check, if it is of such an attempt."""
        with self._changed:
            if self._running is not None and concerns(self._running.attempt):
                self._running.cancelled = True

    def require_live(self, attempt: AttemptId) -> None:
        """Refuse work of an attempt that is not the obeyed one.

        Raises:
            Conflict: it was replaced.
            AttemptFailed: it was stopped, or never fenced here.
        """
        with self._changed:
            fenced = self._fenced
            if fenced is not None and fenced.number > attempt.number:
                raise Conflict(f"attempt {attempt} was replaced by {fenced}")
            if attempt.number <= self._stopped:
                raise AttemptFailed(f"attempt {attempt} was stopped")
            if fenced != attempt:
                raise AttemptFailed(f"attempt {attempt} was never fenced here; this owner obeys {fenced}")

    def wait_idle(self) -> None:
        """Return when no operation runs.

        Raises:
            AttemptFailed: one still does at the deadline.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._running is None, self._deadline_s):
                raise AttemptFailed(
                    f"work of attempt {self._running and self._running.attempt} did not end within "
                    f"{self._deadline_s} s"
                )

    @contextmanager
    def hold(self, attempt: AttemptId) -> Iterator[Callable[[], None]]:
        """Run alone. The block gets a check that raises AttemptFailed once the work was cancelled.

        Raises:
            AttemptFailed: other work did not end within the deadline.
        """
        mine = _Running(attempt)
        with self._changed:
            self.wait_idle()
            self._running = mine

        def check() -> None:
            if mine.cancelled:
                raise AttemptFailed(f"attempt {attempt} was stopped while it was constructed")

        try:
            yield check
        finally:
            with self._changed:
                self._running = None
                self._changed.notify_all()
