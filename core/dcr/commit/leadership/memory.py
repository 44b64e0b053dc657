"""Leadership among threads of one process, for tests: leases by a clock that all candidates share."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic


@dataclass(slots=True)
class Seat:
    """The one place that candidates compete for."""

    lease_s: float
    clock: Callable[[], float] = monotonic
    holder: str = ""
    until: float = 0.0
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True, slots=True)
class MemoryLeadership:
    """``Leadership`` for the candidate ``name``."""

    seat: Seat
    name: str

    def campaign(self) -> bool:
        """See ``Leadership.campaign``."""
        seat = self.seat
        with seat.lock:
            now = seat.clock()
            if seat.holder not in ("", self.name) and now < seat.until:
                return False
            seat.holder, seat.until = self.name, now + seat.lease_s
        return True

    def resign(self) -> None:
        """See ``Leadership.resign``."""
        with self.seat.lock:
            if self.seat.holder == self.name:
                self.seat.holder = ""

    def holder(self) -> str:
        """See ``Leadership.holder``."""
        return self.seat.holder
