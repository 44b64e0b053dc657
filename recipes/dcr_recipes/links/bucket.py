"""A token bucket: how long bytes wait so that a rate holds over any stretch of time but for one burst."""

import threading
import time
from collections.abc import Callable

DEFAULT_BURST_BYTES = 256 << 10


class TokenBucket:
    """Thread-safe. ``rate_bytes_s`` 0: no limit. ``burst_bytes`` may pass at once after a pause.

    All who take share the rate; whoever takes more than there is leaves a debt that the next ones wait for.
    """

    def __init__(
        self,
        rate_bytes_s: float = 0.0,
        burst_bytes: int = DEFAULT_BURST_BYTES,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._rate = rate_bytes_s
        self._burst = burst_bytes
        self._tokens = float(burst_bytes)
        self._since = clock()

    def set_rate(self, rate_bytes_s: float) -> None:
        """Change the rate; the bucket is full again, and who waits already waits as before."""
        with self._lock:
            self._rate = rate_bytes_s
            self._tokens = float(self._burst)
            self._since = self._clock()

    def take(self, num_bytes: int) -> None:
        """Return when ``num_bytes`` may pass."""
        wait_s = self._owed(num_bytes)
        if wait_s > 0:
            self._sleep(wait_s)

    def _owed(self, num_bytes: int) -> float:
        """Take them and say for how many seconds they must wait."""
        with self._lock:
            if self._rate <= 0:
                return 0.0
            now = self._clock()
            self._tokens = min(self._burst, self._tokens + (now - self._since) * self._rate) - num_bytes
            self._since = now
            return max(0.0, -self._tokens / self._rate)
