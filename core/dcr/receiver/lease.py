"""Permission to serve that runs out by itself (DESIGN P11).

A receiver that no longer hears of the run, or does not run at all for a while, must stop to serve a version
that others have left behind. Its coordinator lets it serve for some seconds at a time, counted from the
moment at which it asked; whoever excludes it waits until these are over.
"""

import threading
import time
from collections.abc import Callable


def serving_clock() -> float:
    """Seconds that go on while this process, or the machine under it, is suspended."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)  # Linux
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class Lease:
    """The lease of one serving process, none at first. Thread-safe.

    ``clock`` is the one that ``extend`` is told the end by.
    """

    def __init__(self, clock: Callable[[], float] = serving_clock) -> None:
        self.clock = clock
        self._lock = threading.Lock()  # so that nothing revives one that has ended
        self._until = float("-inf")
        self._ended = False
        self._wanted = threading.Event()
        self._listeners: list[Callable[[], None]] = []

    def valid(self) -> bool:
        """Whether requests may be answered now."""
        return self.left_s() > 0

    @property
    def until(self) -> float:
        """The reading of ``clock`` before which it is valid; minus infinity for none."""
        return self._until

    def left_s(self) -> float:
        """Seconds for which it is still valid; negative once it has run out."""
        return self._until - self.clock()

    def extend(self, until: float) -> None:
        """It is valid before ``until``, unless it was valid for longer, or has ended; waiters are woken."""
        with self._lock:
            if not self._ended:
                self._until = max(self._until, until)
        for listener in self._listeners:
            listener()

    def end(self) -> None:
        """It is valid no more, whatever is still granted: this process leaves. Idempotent."""
        with self._lock:
            self._ended = True
            self._until = float("-inf")

    def want(self) -> None:
        """Somebody needs it now; ends a ``wait_wanted``."""
        self._wanted.set()

    def wait_wanted(self, timeout_s: float) -> None:
        """Return when it is wanted, or after ``timeout_s``. One thread calls this."""
        self._wanted.wait(timeout_s)
        self._wanted.clear()

    def on_extend(self, listener: Callable[[], None]) -> None:
        """Have ``listener`` called after each extension."""
        self._listeners.append(listener)
