"""Holds and applies payloads while they arrive, between the coordinator's calls (DESIGN R8, R19)."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from dcr.commit.endpoints import ReceiverEndpoint
from dcr.model import (
    ApplyAck,
    AttemptId,
    CommitRecord,
    ReceiverAudit,
    ReceiverDiagnosis,
    ReceiverReport,
)

_log = logging.getLogger(__name__)
_GROWTH = 1.25
"""Of a pause over the one before: about a fifth of the time that nothing has come."""


class PumpedReceiver(ReceiverEndpoint, Protocol):
    """The receiver's agent as a process drives it; safe to call from several threads."""

    name: str

    def pump(self) -> int:
        """Hold or apply what is visible of the attempt; returns how many payloads, 0 if there is none."""
        ...

    def audit(self) -> ReceiverAudit:
        """Digest what is resident, if it is one clean version."""
        ...

    @property
    def lost(self) -> threading.Event:
        """See ``dcr.refit.background.Examined``."""
        ...

    @property
    def incarnation(self) -> str:
        """See ``dcr.refit.lease.LeaseTaker``."""
        ...

    @property
    def base(self) -> AttemptId | None:
        """See ``dcr.refit.lease.LeaseTaker``."""
        ...

    def examine(self) -> int:
        """See ``dcr.refit.background.Examined``."""
        ...

    def diagnose(self) -> ReceiverDiagnosis:
        """State, choices and audit, for ``dcr doctor``."""
        ...


class Pump:
    """Passes calls on to ``agent`` and pumps in a thread, from ``stage`` or ``open_apply`` to the end.

    ``idle_s`` lies between two pumps, also after a fruitful one: a lock that is taken again at once
    would keep a fence waiting. While nothing comes pauses grow, up to ``most_idle_s``: looking may cost a
    request, and what has taken long already is not made much longer by a pause in proportion.
    """

    def __init__(self, agent: PumpedReceiver, *, idle_s: float = 0.005, most_idle_s: float = 0.25) -> None:
        self._agent = agent
        self._least_s = self._idle_s = idle_s
        self._most_s = max(idle_s, most_idle_s)
        self._changed = threading.Condition()
        self._open: AttemptId | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)
        self._thread.start()

    def handlers(self) -> dict[str, Callable[..., object]]:
        """The receiver's calls by method name."""
        return {
            "fence": self.fence,
            "restore": self._agent.restore,
            "stage": self.stage,
            "staged": self._agent.staged,
            "open_apply": self.open_apply,
            "finish": self.finish,
            "settle": self._agent.settle,
            "stop_and_wait": self.stop_and_wait,
            "audit": self._agent.audit,
            "diagnose": self._agent.diagnose,
        }

    def fence(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        """See ``ReceiverEndpoint.fence``."""
        self._end(attempt)
        return self._agent.fence(attempt, record)

    def stage(self, attempt: AttemptId, record: CommitRecord, since: int) -> None:
        """See ``ReceiverEndpoint.stage``; payloads are then held as they arrive."""
        self._agent.stage(attempt, record, since)
        self._begin(attempt)

    def open_apply(self, attempt: AttemptId, record: CommitRecord, manifest: str | None = None) -> None:
        """See ``ReceiverEndpoint.open_apply``; payloads are then applied as they arrive."""
        self._agent.open_apply(attempt, record, manifest)
        self._begin(attempt)

    def finish(self, attempt: AttemptId, manifest: str) -> ApplyAck:
        """See ``ReceiverEndpoint.finish``."""
        ack = self._agent.finish(attempt, manifest)
        self._end(attempt)
        return ack

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """See ``ReceiverEndpoint.stop_and_wait``."""
        self._end(attempt)
        self._agent.stop_and_wait(attempt)

    def close(self) -> None:
        """End the thread; idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def _begin(self, attempt: AttemptId) -> None:
        with self._changed:
            self._open = attempt
            self._idle_s = self._least_s
            self._changed.notify_all()

    def _end(self, attempt: AttemptId) -> None:
        """Pump nothing any more of ``attempt`` or an earlier one."""
        with self._changed:
            if self._open is not None and self._open <= attempt:
                self._open = None

    def _run(self) -> None:
        while self._wait_for_work():
            num_payloads = 0
            try:
                num_payloads = self._agent.pump()
            except Exception:  # noqa: BLE001 -- the thread's border: finish pumps again and reports
                _log.warning("pumping failed, trying again", exc_info=True)
            self._rest(num_payloads)

    def _rest(self, num_payloads: int) -> None:
        """How long to pause after a pump that brought so many."""
        with self._changed:
            self._idle_s = self._least_s if num_payloads else min(self._most_s, _GROWTH * self._idle_s)

    def _wait_for_work(self) -> bool:
        """Return when an attempt is open and the pause is over; false once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed, self._idle_s)
            self._changed.wait_for(lambda: self._closed or self._open is not None)
            return not self._closed
