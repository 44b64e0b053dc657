"""The real lease keeper of a receiver: its thread stands still until an answer or the time comes."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from dcr.commit.context import Context
from dcr.commit.membership import grant_lease
from dcr.errors import RefitError, Unreachable
from dcr.model import ControlState, LeaseGrant
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.lease import Lease
from dcr.refit.lease import LeaseKeeper
from tests.simulation.suspended import Turns

Desk = Callable[[], tuple[Context, ControlState] | None]
"""Whom requests for leases reach: a coordinator's context, and what it reads then; None: nobody."""
LOST_AFTER = 5
"""Steps after which a request without an answer counts as lost."""


@dataclass(slots=True)
class Ask:
    """A request for a lease: what was asked, what was read for it, and its answer, as far as it has got."""

    params: dict[str, Any]
    left: int
    read: tuple[Context, ControlState] | None = None
    answer: LeaseGrant | RefitError | None = None


class SimulatedLease(Lease):
    """Waits of its keeper are turns of the simulation."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.turns = Turns()
        self.closed = False
        self.wake_at: float | None = None

    def wait_wanted(self, timeout_s: float) -> None:  # type: ignore[explicit-override]  # typing.override: 3.12
        """Stand still until it is wanted or the time has come."""
        if self.closed:
            return
        self.wake_at = self.clock() + timeout_s
        self.turns.pause()
        self.wake_at = None
        self._wanted.clear()

    @property
    def wants_its_keeper(self) -> bool:
        """Whether ``wait_wanted`` would return now."""
        return self.wake_at is not None and (self._wanted.is_set() or self.clock() >= self.wake_at)


class Renewals:
    """One receiver process's keeper, and its requests on their way. ``delays``: steps to, inside and from.

    ``wants_admission``: it was refused and waits until it was admitted.
    """

    def __init__(self, agent: ReceiverAgent, lease: SimulatedLease, events: Counter[str]) -> None:
        self.delays = (0, 0, 0)
        self.wants_admission = False
        self._events = events
        self._turns = lease.turns
        self._ask: Ask | None = None
        self._waits = 0
        self.lease = lease
        self._keeper = LeaseKeeper(agent, lease, cast("Any", self), on_refused=self._refused)
        self._turns.wait()

    def end(self) -> None:
        """The process is gone."""
        self.lease.closed = True
        self._keeper._closed.set()
        self._turns.let_end(self._keeper._thread)

    def now(self, method: str, answer: type, timeout_s: float, **params: object) -> LeaseGrant:
        """In the keeper's thread, as ``Party``: ask, and stand still until an answer is there."""
        del method, answer, timeout_s
        if self.lease.closed:
            raise Unreachable("this process has ended")
        self._ask = Ask(params, self.delays[0])
        self._turns.pause()
        asked, self._ask = self._ask, None
        if asked.answer is None:  # the process ends
            raise Unreachable("no answer within its deadline")
        if isinstance(asked.answer, RefitError):
            raise asked.answer
        return asked.answer

    def tick(self, desk: Desk, *, cut_off: bool) -> None:
        """A step: a request goes on, the keeper wakes up, or goes on waiting to be admitted."""
        if self._ask is not None:
            self._go_on(self._ask, desk, cut_off=cut_off)
        elif self.wants_admission:
            self._waits -= 1
            if self._waits <= 0:
                self.admitted()
        elif self.lease.wants_its_keeper:
            self._turns.resume()

    def admitted(self) -> None:
        """Whoever was asked to admit it has answered, or stays away: the keeper asks again."""
        if self.wants_admission:
            self.wants_admission = False
            self._turns.resume()

    def _refused(self) -> None:
        self._events["lease refused, asks to be admitted"] += 1
        if not self.lease.closed:
            self.wants_admission, self._waits = True, 40
            self._turns.pause()
            self.wants_admission = False

    def _go_on(self, ask: Ask, desk: Desk, *, cut_off: bool) -> None:
        ask.left -= 1
        if ask.left > 0:
            return
        if ask.answer is not None:
            self._turns.resume()
        elif cut_off:
            ask.answer, ask.left = Unreachable("cut off"), LOST_AFTER
        elif ask.read is None:
            self._read(ask, desk)
        else:
            self._grant(ask)

    def _read(self, ask: Ask, desk: Desk) -> None:
        ask.read, ask.left = desk(), self.delays[1]
        if ask.read is None:
            ask.answer, ask.left = Unreachable("nobody coordinates"), LOST_AFTER
        elif ask.left <= 0:
            self._grant(ask)

    def _grant(self, ask: Ask) -> None:
        assert ask.read is not None
        context, state = ask.read
        try:
            ask.answer = grant_lease(context, state, **ask.params)
            self._events["lease granted"] += 1
        except RefitError as err:
            ask.answer = err
            self._events[f"lease refused: {type(err).__name__}"] += 1
        ask.left = self.delays[2]
        if ask.left <= 0:
            self._turns.resume()
