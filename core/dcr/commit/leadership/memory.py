"""Leadership among threads of one process, for tests: leases by a clock that all candidates share."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from dcr.model import RunId


@dataclass(frozen=True, slots=True)
class Seats:
    """The places that candidates compete for: run -> (who holds it, until when)."""

    lease_s: float
    clock: Callable[[], float] = monotonic
    held: dict[RunId, tuple[str, float]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class MemoryLeadership:
    """``Leadership`` of ``run`` for the candidate ``name``."""

    seats: Seats
    run: RunId
    name: str

    def campaign(self) -> bool:
        """See ``Leadership.campaign``."""
        seats = self.seats
        with seats.lock:
            now = seats.clock()
            holder, until = seats.held.get(self.run, (self.name, now))
            if holder != self.name and now < until:
                return False
            seats.held[self.run] = (self.name, now + seats.lease_s)
        return True

    def resign(self) -> None:
        """See ``Leadership.resign``."""
        with self.seats.lock:
            if self.seats.held.get(self.run, ("", 0.0))[0] == self.name:
                del self.seats.held[self.run]

    def holder(self) -> str:
        """See ``Leadership.holder``."""
        return self.seats.held.get(self.run, ("", 0.0))[0]
