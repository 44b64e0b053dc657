"""Keeps a serving process under a lease, and notices that the run went on without it (DESIGN P11)."""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from dcr.commit.remote import Party
from dcr.errors import Conflict, RefitError
from dcr.model import AttemptId, LeaseGrant
from dcr.receiver.lease import Lease

_log = logging.getLogger(__name__)
_RETRY_S = 0.2
_ANSWER_S = 5.0
_REFUSALS = 3
"""In a row before a receiver asks to be admitted: one alone may be about a moment that has passed."""


class LeaseTaker(Protocol):
    """What the thread asks of a receiver; ``dcr.receiver.agent.ReceiverAgent`` has it all. Never waits."""

    name: str

    @property
    def incarnation(self) -> str:
        """Which process of this name it is."""
        ...

    @property
    def base(self) -> AttemptId | None:
        """What committed the version that storage holds, or that writes started from; None for neither."""
        ...


class LeaseKeeper:
    """Renews ``lease`` whenever a third of it is over, and at once while somebody waits for it.

    A lease counts from the moment at which it was asked for. When the coordinator refuses it for what
    the receiver holds, ``on_refused`` is called, in this thread; it returns when the receiver was admitted
    (``CoordinatorService.admit``). So one that was evicted, in whatever state, comes back.
    """

    def __init__(
        self, receiver: LeaseTaker, lease: Lease, coordinator: Party, *, on_refused: Callable[[], None]
    ) -> None:
        self._receiver = receiver
        self._lease = lease
        self._coordinator = coordinator
        self._on_refused = on_refused
        self._num_refusals = 0
        self._told = ""
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End the lease for good and have the run do without this receiver at once. Before the process ends.

        Requests in flight are not answered any more. Nothing else of this process may ask to be admitted.

        Raises:
            RefitError: the run does not know; it goes on without this receiver when it has been silent for
                long enough.
        """
        self._lease.end()
        self.close()
        leave(self._receiver, self._coordinator)

    def close(self) -> None:
        """Renew no more; idempotent. What is granted stays valid until it runs out or is ended."""
        self._closed.set()
        self._lease.want()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                wait_s = self._renew()
            except Exception:  # noqa: BLE001 -- the thread's border: without it the lease would silently end
                _log.warning("renewing the lease failed, trying again", exc_info=True)
                wait_s = _RETRY_S
            self._lease.wait_wanted(wait_s)

    def _renew(self) -> float:
        """One request; seconds to wait before the next."""
        held, sent_s = self._receiver.base, self._lease.clock()
        try:
            grant: LeaseGrant = self._coordinator.now(
                "renew", LeaseGrant, _ANSWER_S,
                receiver=self._receiver.name, incarnation=self._receiver.incarnation, held=held,
            )  # fmt: skip
        except Conflict as err:
            return self._refused(held, err)
        except RefitError as err:
            self._tell(f"{type(err).__name__}: {err}")
            return _RETRY_S
        self._lease.extend(sent_s + grant.seconds)
        self._num_refusals, self._told = 0, ""
        return grant.seconds / 3

    def _refused(self, held: AttemptId | None, err: Conflict) -> float:
        if self._receiver.base != held:
            return 0.0  # it has moved on since it asked
        self._num_refusals += 1
        if self._num_refusals >= _REFUSALS:
            self._tell(f"{err}")
            self._num_refusals = 0
            self._on_refused()
            return 0.0
        return _RETRY_S

    def _tell(self, failure: str) -> None:
        if failure != self._told:
            _log.warning("%s has no new lease: %s", self._receiver.name, failure)
        self._told = failure


def leave(receiver: LeaseTaker, coordinator: Party) -> None:
    """Have the run do without ``receiver`` at once. It answers no more and never will. Raises RefitError."""
    name, incarnation = receiver.name, receiver.incarnation
    coordinator.now("leave", tuple[str, ...], _ANSWER_S, receiver=name, incarnation=incarnation)
