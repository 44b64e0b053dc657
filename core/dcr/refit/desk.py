"""Where a coordinator takes requests: carried out by the term it is in, refused between terms."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dcr.commit.context import Rollback, TransitionReport
from dcr.commit.control_plane.claimed import ClaimedPlane
from dcr.commit.service import CoordinatorService
from dcr.errors import AttemptFailed, Conflict, MissingObject, OutcomeUnknown, StoreError, Unreachable
from dcr.model import AttemptId, Catalogue, CommitRecord, LeaseGrant, ReceiverReport, RunId

T = TypeVar("T")
TRANSIENT = (AttemptFailed, Conflict, OutcomeUnknown, StoreError, Unreachable)
"""What a coordinator may raise because another one has taken its place."""


def _nothing() -> None:
    """A term that holds nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One time of being active: a service without memory of earlier ones, and what it claimed.

    ``close`` gives back its threads and connections; the desk calls it when nobody uses the term any more.
    """

    run: RunId
    service: CoordinatorService
    plane: ClaimedPlane
    close: Callable[[], None] = _nothing

    def is_replaced(self) -> bool:
        """Whether a claim has followed under which nobody acts here; unknown counts as no."""
        try:
            return self.service.is_adrift or self.plane.is_replaced(self.run)
        except StoreError:
            return False

    def take_over(self) -> bool:
        """Resume the run if it exists; returns whether it does. Raises as ``open_run``."""
        try:
            self.service.record()
        except MissingObject:
            return False
        self.service.open_run(resume=True)
        return True


class Desk:
    """The requests of ``CoordinatorService``, for whichever term there is. Thread-safe.

    A request that comes between terms, or whose term ends in its midst, is answered Unreachable:
    who asks looks for the active coordinator and asks again, which every request allows.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._term: Term | None = None
        self._users: Counter[Term] = Counter()

    @property
    def term(self) -> Term | None:
        """The present term; None on standby."""
        return self._term

    def begin(self, term: Term) -> None:
        """Take requests for ``term`` from now on."""
        with self._lock:
            self._term = term

    def end(self, term: Term) -> None:
        """Take no more requests for ``term``, and close it when those that it has are answered.

        Nothing happens if another one has begun.
        """
        with self.using(term), self._lock:
            if self._term is term:
                self._term = None

    @contextmanager
    def using(self, term: Term) -> Iterator[None]:
        """Keep ``term`` open inside the block; the last one to leave a term that has ended closes it."""
        with self._lock:
            self._users[term] += 1
        try:
            yield
        finally:
            with self._lock:
                self._users[term] -= 1
                last = not self._users[term]
                if last:
                    del self._users[term]
                ended = last and self._term is not term
            if ended:
                term.close()

    def is_over(self, term: Term) -> bool:
        """Whether ``term`` has ended; one that was replaced ends here."""
        if self._term is term and term.is_replaced():
            self.end(term)
        return self._term is not term

    def handlers(self) -> dict[str, Callable[..., object]]:
        """Method name -> callable, for ``dcr.transport.rpc.serve``."""
        calls = (
            self.open_run, self.transition, self.admit, self.record, self.renew, self.leave, self.rollback
        )  # fmt: skip
        return {call.__name__: call for call in calls}

    def open_run(self, resume: bool, catalogue: Catalogue | None = None) -> CommitRecord:
        """See ``CoordinatorService.open_run``."""
        return self._ask(lambda service: service.open_run(resume, catalogue))

    def transition(self, step: int, parent_version: int, requester: str = "") -> TransitionReport:
        """See ``CoordinatorService.transition``."""
        return self._ask(lambda service: service.transition(step, parent_version, requester))

    def admit(self, receiver: str) -> ReceiverReport:
        """See ``CoordinatorService.admit``."""
        return self._ask(lambda service: service.admit(receiver))

    def record(self) -> CommitRecord:
        """See ``CoordinatorService.record``."""
        return self._ask(lambda service: service.record())

    def renew(self, receiver: str, incarnation: str, held: AttemptId | None) -> LeaseGrant:
        """See ``CoordinatorService.renew``."""
        return self._ask(lambda service: service.renew(receiver, incarnation, held))

    def leave(self, receiver: str, incarnation: str) -> tuple[str, ...]:
        """See ``CoordinatorService.leave``."""
        return self._ask(lambda service: service.leave(receiver, incarnation))

    def rollback(self) -> Rollback:
        """See ``CoordinatorService.rollback``."""
        return self._ask(lambda service: service.rollback())

    def _ask(self, call: Callable[[CoordinatorService], T]) -> T:
        term = self._term
        if term is None:
            raise Unreachable(f"{self._name} stands by and answers nothing; ask the active coordinator")
        with self.using(term):
            if self._term is not term:
                raise Unreachable(f"{self._name} no longer coordinates this run; ask the active coordinator")
            try:
                return call(term.service)
            except TRANSIENT as err:
                if self.is_over(term):
                    raise Unreachable(f"{self._name} no longer coordinates this run: {err}") from err
                raise
