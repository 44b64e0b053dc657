"""The thread that audits a serving instance at a bounded rate and has it repaired (DESIGN B6, P11)."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from dcr.errors import RefitError

_log = logging.getLogger(__name__)
MIB = 1 << 20
_IDLE_S = 0.5


class Examined(Protocol):
    """What the thread asks of a receiver; ``dcr.receiver.agent.ReceiverAgent`` has both."""

    @property
    def lost(self) -> threading.Event:
        """Set when the instance took itself out; cleared when it holds a proven version again."""
        ...

    def examine(self) -> int:
        """Read and judge the next slice of resident storage; bytes read, 0 while a transition is on."""
        ...


class BackgroundAudit:
    """Examines ``agent`` at ``rate_mib_s`` at most (0: never) and calls ``repair`` when it is lost.

    ``repair`` returns when the instance serves again; it runs in this thread, so nothing is read
    meanwhile. ``pause`` stops reading, not repairing. A long pause between two steps leaves the lock,
    and the device, to refits and requests.
    """

    def __init__(
        self, agent: Examined, rate_mib_s: float, *, repair: Callable[[], None], idle_s: float = _IDLE_S
    ) -> None:
        self._agent = agent
        self._bytes_per_s = rate_mib_s * MIB
        self._repair = repair
        self._idle_s = idle_s
        self._paused = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Read nothing until ``resume``; a slice that has begun is finished. Idempotent."""
        self._paused.set()

    def resume(self) -> None:
        """Go on. Idempotent."""
        self._paused.clear()

    def close(self) -> None:
        """End the thread; idempotent."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        wait_s = self._idle_s
        while not self._closed.wait(wait_s):
            try:
                wait_s = self._once()
            except Exception:  # noqa: BLE001 -- the thread's border: an audit must not end with one failure
                _log.warning("the background audit failed, trying again", exc_info=True)
                wait_s = self._idle_s

    def _once(self) -> float:
        """One step; seconds to wait before the next."""
        if self._agent.lost.is_set():
            _log.warning("asking to be repaired")
            self._repair()
            return self._idle_s
        if self._paused.is_set() or self._bytes_per_s <= 0:
            return self._idle_s
        started = time.monotonic()
        try:
            num_bytes = self._agent.examine()
        except RefitError as err:
            _log.info("nothing could be audited: %s", err)
            num_bytes = 0
        return (
            pause_s(num_bytes, time.monotonic() - started, self._bytes_per_s) if num_bytes else self._idle_s
        )


def pause_s(num_bytes: int, took_s: float, bytes_per_s: float) -> float:
    """How long to wait after ``num_bytes`` in ``took_s`` so that the rate holds; never less than it took."""
    return max(num_bytes / bytes_per_s - took_s, took_s)
