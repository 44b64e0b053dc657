"""What one coordinator remembers of receivers: who was granted a lease when, and who is failing (DESIGN P11).

Nothing here is durable and nothing rests on its being so: a new coordinator waits as if every member had
been granted a lease at the moment at which it took over. Times are seconds of the coordinator's clock.
"""

import threading
from collections.abc import Iterable, Mapping

from dcr.errors import Conflict


class MembershipBook:
    """One per epoch. Thread-safe: leases are granted while a transition holds everything else."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken_over = float("-inf")
        self._granted: dict[str, float] = {}
        self._incarnations: dict[str, str] = {}
        self._refused: set[str] = set()
        self._failing: dict[str, float] = {}

    def take_over(self, now: float) -> None:
        """The run is ours since before ``now``: no lease of an earlier coordinator was asked for later."""
        with self._lock:
            self._taken_over = now

    def grant(self, name: str, incarnation: str, now: float) -> None:
        """Note that a request of ``name``, sent before ``now``, is granted.

        Raises:
            Conflict: it is refused, or it comes from a process that another one has replaced.
        """
        with self._lock:
            if name in self._refused:
                raise Conflict(f"{name} was evicted, or is about to be; ask to be admitted again")
            known = self._incarnations.setdefault(name, incarnation)
            if known != incarnation:
                raise Conflict(f"{name} was restarted as {known}; {incarnation} must not serve")
            self._granted[name] = max(now, self._granted.get(name, now))

    def dismiss(self, name: str, incarnation: str) -> None:
        """Refuse ``name``, whose process ``incarnation`` has ended.

        Raises:
            Conflict: another process, or none, is known to be ``name``; it is not refused.
        """
        with self._lock:
            known = self._incarnations.get(name)
            if known != incarnation:
                raise Conflict(f"{name} is known as {known or 'no process'} here, not as {incarnation}")
            self._refused.add(name)

    def refuse(self, name: str) -> float:
        """Grant ``name`` nothing until it is admitted; returns when the last request was granted to it."""
        with self._lock:
            self._refused.add(name)
            return max(self._taken_over, self._granted.get(name, self._taken_over))

    def is_refused(self, name: str) -> bool:
        """Whether ``name`` has been refused since it was last admitted; its removal may be under way."""
        with self._lock:
            return name in self._refused

    def meet(self, name: str, incarnation: str) -> None:
        """``name`` answered as the process ``incarnation``: an earlier one must not serve."""
        with self._lock:
            self._incarnations[name] = incarnation

    def admit(self, name: str, incarnation: str) -> None:
        """``name`` is a member, as the process ``incarnation``, and holds what is committed."""
        with self._lock:
            self._refused.discard(name)
            self._incarnations[name] = incarnation
            self._failing.pop(name, None)

    def note(self, answered: Iterable[str], silent: Mapping[str, float]) -> dict[str, float]:
        """An attempt ended: ``answered`` did to their last call, ``silent`` left one open that began then.

        Returns since when each party has been failing, in attempts in a row. Who was not asked stays as
        it was.
        """
        with self._lock:
            for name in answered:
                self._failing.pop(name, None)
            for name, began in silent.items():
                self._failing.setdefault(name, began)
            return dict(self._failing)
