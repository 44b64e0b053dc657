"""One of a run's coordinators: active while it leads, on standby otherwise (DESIGN R17, P10).

Who leads decides only who acts. What an active coordinator may write is decided by its epoch in the
control plane: one that was stopped and wakes up behind its successor is refused there, and stands
down.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic, sleep

from dcr.commit.leadership.base import Leadership
from dcr.errors import PayloadError, StoreError
from dcr.refit.desk import TRANSIENT, Desk, Term
from dcr.transport.peers import Peer, Peers

logger = logging.getLogger(__name__)
LOOKS_PER_LEASE = 4
LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Seat:
    """What a candidate competes for. ``me`` is its entry in ``peers`` while it is active.

    ``new_term`` composes a service that has done nothing yet; ``lease_s`` is that of ``leadership``.
    """

    leadership: Leadership
    lease_s: float
    peers: Peers
    me: Peer
    new_term: Callable[[], Term]


class Candidate:
    """Steps through its roles while ``desk`` answers requests; ``tell`` hears of each change.

    Call order: ``step`` again and again from one thread, at last ``close``.
    """

    def __init__(
        self,
        name: str,
        seat: Seat,
        desk: Desk,
        *,
        tell: Callable[[str], None] = logger.warning,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._name = name
        self._seat = seat
        self._desk = desk
        self._tell = tell
        self._clock = clock
        self._pause = pause
        self._term: Term | None = None
        self._led_at = 0.0
        self._leader = ""  # another one
        self._told_leader = ""
        self._troubled = False
        self._fault: Exception | None = None

    def run(self, stop: threading.Event) -> None:
        """Step until ``stop`` is set, then stand down and let another one follow at once.

        Raises:
            RefitError: taking the run over met what no retry repairs.
            Exception: it met a fault of this process, or a lack of memory or threads; another may not.
        """
        pause_s = min(self._seat.lease_s / LOOKS_PER_LEASE, LONGEST_PAUSE_S)
        try:
            while not stop.is_set():
                self.step()
                stop.wait(pause_s)
        finally:
            self.close()

    def step(self) -> None:
        """Look once whether this candidate leads, and change its role accordingly; raises as ``run``."""
        if self._fault is not None:
            raise self._fault
        leads = self._leads()
        term = self._term
        if term is not None and not leads:
            self._stand_down(term, "another one leads")
        elif term is not None and self._desk.is_over(term):
            self._stand_down(term, "the run has been claimed since")
        elif leads:
            self._begin() if term is None else self._be_found()
        if self._leader != self._told_leader and self._leader:
            self._tell(f"{self._name} stands by; {self._leader} leads")
        self._told_leader = self._leader

    def close(self) -> None:
        """Stand down and let another one follow at once."""
        if self._term is None:
            return
        self._stand_down(self._term, "it ends")
        try:
            self._seat.leadership.resign()
        except StoreError as err:
            logger.warning("%s: %s", self._name, err)

    def _leads(self) -> bool:
        """One that cannot look remains what it was, but not beyond its lease."""
        began = self._clock()
        try:
            leads = self._seat.leadership.campaign()
        except StoreError as err:
            self._complain(str(err))
            return self._term is not None and self._clock() - self._led_at < self._seat.lease_s
        self._troubled = False
        if leads:
            self._led_at = began
        self._leader = "" if leads else self._who_leads()
        return leads

    def _who_leads(self) -> str:
        try:
            return self._seat.leadership.holder()
        except StoreError:
            return self._leader

    def _begin(self) -> None:
        term = self._term = self._seat.new_term()
        self._desk.begin(term)
        self._tell(f"{self._name} is the active coordinator")
        self._be_found()
        threading.Thread(target=self._take_over, args=(term,), name="take over", daemon=True).start()

    def _take_over(self, term: Term) -> None:
        """Until it succeeds: receivers cannot renew their leases before."""
        try:
            with self._desk.using(term):
                self._take_over_while_it_lasts(term)
        except Exception as err:  # noqa: BLE001 -- the thread's border: else it leads and answers nothing
            self._fault = err

    def _take_over_while_it_lasts(self, term: Term) -> None:
        told = False
        while not self._desk.is_over(term):
            try:
                term.take_over()
            except TRANSIENT as err:
                if not told:
                    logger.warning("%s has not taken the run over yet: %s", self._name, err)
                told = True
                self._pause(LONGEST_PAUSE_S)
            else:
                return

    def _stand_down(self, term: Term, why: str) -> None:
        self._desk.end(term)
        self._term = None
        self._tell(f"{self._name} stands down: {why}")
        if self._announced() == self._seat.me:
            self._seat.peers.withdraw(self._seat.me.name)

    def _be_found(self) -> None:
        """Only who leads writes the entry, so it is written whoever else is there."""
        me = self._seat.me
        try:
            if self._announced() != me:
                self._seat.peers.publish(me.name, me.url, me.incarnation)
        except StoreError as err:
            self._complain(str(err))

    def _announced(self) -> Peer | None:
        try:
            return self._seat.peers.find(self._seat.me.name)
        except (PayloadError, StoreError):
            return None

    def _complain(self, trouble: str) -> None:
        """Once, until a look succeeds again."""
        if not self._troubled:
            logger.warning("%s: %s", self._name, trouble)
        self._troubled = True
