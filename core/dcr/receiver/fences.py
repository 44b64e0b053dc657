"""Which attempt a party obeys, has fenced and has stopped (DESIGN P6)."""

import threading

from dcr.errors import AttemptFailed
from dcr.model import AttemptId
from dcr.receiver import rules


class Fences:
    """Monotonic: a later attempt replaces an earlier one for good. Thread-safe without the caller's lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._obeyed: AttemptId | None = None
        self._stopped: AttemptId | None = None
        self.fenced: AttemptId | None = None

    def obey(self, attempt: AttemptId) -> None:
        """From now on every earlier attempt is cancelled. Raises Conflict if a later one is obeyed."""
        with self._lock:
            rules.check_not_replaced(attempt, self._obeyed)
            self._obeyed = attempt

    def stop(self, attempt: AttemptId) -> bool:
        """End ``attempt`` for good; false if it was replaced anyway."""
        with self._lock:
            if self._obeyed is not None and attempt < self._obeyed:
                return False
            self._stopped = attempt if self._stopped is None else max(self._stopped, attempt)
            return True

    def check_not_replaced(self, attempt: AttemptId) -> None:
        """Raises Conflict: a later attempt is obeyed."""
        rules.check_not_replaced(attempt, self._obeyed)

    def check_current(self, attempt: AttemptId) -> None:
        """Raises Conflict: ``attempt`` is not the fenced one, or a later one is obeyed."""
        rules.check_not_replaced(attempt, self._obeyed)
        rules.check_fenced(attempt, self.fenced)

    def check_not_stopped(self, attempt: AttemptId) -> None:
        """Raises AttemptFailed: it was stopped here."""
        if self._stopped is not None and attempt <= self._stopped:
            raise AttemptFailed(f"attempt {attempt} was stopped here; prepare a new one")

    def is_cancelled(self, attempt: AttemptId) -> bool:
        """Whether ``attempt`` was replaced or stopped."""
        return self._obeyed != attempt or (self._stopped is not None and attempt <= self._stopped)
