"""Coordinators that compete for a run: roles, requests between terms, waking up behind a successor."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.simulation.parties import CATALOGUE, fresh_words
from tests.simulation.world import RUN, World

from dcr import observe
from dcr.commit.context import Roster, TransitionReport
from dcr.commit.control_plane.claimed import ClaimedPlane
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.driver import Driver
from dcr.commit.leadership.memory import MemoryLeadership, Seats
from dcr.commit.service import CoordinatorService
from dcr.commit.transitions import take_over
from dcr.config import CommitConfig
from dcr.errors import AttemptFailed, Conflict, IntegrityError, StoreError, Unreachable
from dcr.refit.candidate import Candidate, Seat
from dcr.refit.desk import Desk, Term
from dcr.transport.peers import Peer, Peers

if TYPE_CHECKING:
    from dcr.model import CommitRecord

CONFIG = CommitConfig(max_attempts=2, retry_pause_s=0.0, collect_deadline_s=0.0)
ROSTER = Roster(("owner-0", "owner-1"), ("runtime-0", "runtime-1"))
LEASE_S = 10.0


@dataclass
class Office:
    """One coordinator: its desk and its candidate."""

    name: str
    desk: Desk
    candidate: Candidate
    leadership: MemoryLeadership
    me: Peer
    told: list[str]

    def step(self) -> "Office":
        """One look; a run that exists is taken over when this returns."""
        self.candidate.step()
        for thread in threading.enumerate():
            if thread.name == "take over":
                thread.join()
        return self


@dataclass
class House:
    """A simulated world with a register, a clock and a seat for coordinators."""

    peers: Peers
    world: World = field(default_factory=World)
    plane: MemoryControlPlane = field(default_factory=MemoryControlPlane)
    now: float = 0.0
    seats: Seats = field(init=False)

    def __post_init__(self) -> None:
        self.world.plane = self.plane
        self.seats = Seats(LEASE_S, lambda: self.now)

    def office(self, name: str) -> Office:
        told: list[str] = []
        desk, me = Desk(name), Peer("coordinator", f"http://{name}", name)
        leadership = MemoryLeadership(self.seats, RUN, name)
        seat = Seat(leadership, LEASE_S, self.peers, me, self.new_term)
        candidate = Candidate(name, seat, desk, tell=told.append, clock=lambda: self.now)
        return Office(name, desk, candidate, leadership, me, told)

    def new_term(self) -> Term:
        parties: dict[str, object] = {owner.name: owner.agent for owner in self.world.owners}
        parties |= {receiver.name: receiver.agent for receiver in self.world.receivers}
        plane = ClaimedPlane(self.plane)
        driver = Driver(plane, self.world.archive, parties, RUN, pause=lambda seconds: None)
        return Term(RUN, CoordinatorService(driver, CONFIG, ROSTER), plane)

    def create(self, office: Office) -> None:
        """The run at v0, served by all."""
        office.step().desk.open_run(resume=False, catalogue=CATALOGUE)
        for name in ROSTER.receivers:
            office.desk.admit(name)

    def train(self, step: int) -> None:
        words = fresh_words()
        words["split"][0] = step
        for owner in self.world.owners:
            owner.present(step, words)

    def silence(self, office: Office) -> None:
        """``office`` is not heard of for a whole lease."""
        assert self.seats.held[RUN][0] == office.name
        self.now += LEASE_S

    @property
    def served(self) -> list[int | None]:
        gates = [receiver.serving.gate for receiver in self.world.receivers]
        return [gate.version if gate.is_open else None for gate in gates]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = House(Peers(tmp_path / "endpoints"))
    yield made
    made.world.close()


def test_one_leads_and_is_found_and_the_other_answers_nothing(house: House) -> None:
    a, b = house.office("a").step(), house.office("b").step().step()
    assert house.peers.find("coordinator") == a.me
    assert (a.told, b.told) == (["a is the active coordinator"], ["b stands by; a leads"])
    assert a.desk.open_run(resume=False, catalogue=CATALOGUE).version == 0
    calls = (
        lambda: b.desk.open_run(resume=True),
        lambda: b.desk.transition(1, 0),
        lambda: b.desk.admit("runtime-0"),
        lambda: b.desk.leave("runtime-0"),
        b.desk.rollback,
        b.desk.record,
    )
    for call in calls:
        with pytest.raises(Unreachable, match="b stands by"):
            call()


def test_a_silent_one_is_replaced_and_its_requests_are_sent_on(house: House) -> None:
    """It does not know yet: its epoch is what stops it (P10)."""
    a, b = house.office("a"), house.office("b").step()
    b.candidate.close()
    house.create(a)
    house.silence(a)
    b.step()
    assert b.told[-1] == "b is the active coordinator"
    assert house.peers.find("coordinator") == b.me
    house.train(1)
    with pytest.raises(Unreachable, match="a no longer coordinates this run"):
        a.desk.transition(1, 0)
    assert b.desk.transition(1, 0).record.version == 1
    assert house.served == [1, 1]
    a.step()
    assert a.told[-2:] == ["a stands down: another one leads", "a stands by; b leads"]
    assert house.peers.find("coordinator") == b.me, "whoever stands down withdraws only its own entry"


@pytest.mark.parametrize("moment", ["prepare", "mark_opened", "construct", "finish"])
def test_a_successor_finishes_what_was_begun_while_owners_hold_the_candidate(
    house: House, moment: str
) -> None:
    """The active one is stopped at the moment, replaced, and goes on when all is done: it does no harm."""
    a, b = house.office("a"), house.office("b")
    house.create(a)
    house.train(1)
    done: list[TransitionReport] = []

    def stop_here(event: observe.Event) -> None:
        if event.name == f"coordinator.{moment}.after" and b.desk.term is None:
            house.silence(a)
            b.step()
            done.append(b.desk.transition(1, 0))

    with observe.listening(stop_here), pytest.raises(Unreachable, match="a no longer coordinates"):
        a.desk.transition(1, 0)
    assert [report.record.version for report in done] == [1]
    assert house.plane.read(RUN).record == done[0].record
    assert house.served == [1, 1]
    assert b.desk.transition(1, 0).record == done[0].record


def test_a_commit_that_landed_is_completed_by_the_successor(house: House) -> None:
    """The active one is stopped right after its commit; when it wakes, its answer is the same."""
    a, b = house.office("a"), house.office("b")
    house.create(a)
    house.train(1)
    records: list[CommitRecord] = []

    def stop_here(event: observe.Event) -> None:
        if event.name == "coordinator.commit.after" and b.desk.term is None:
            house.silence(a)
            records.append(b.step().desk.transition(1, 0).record)

    with observe.listening(stop_here):
        records.append(a.desk.transition(1, 0).record)
    assert records[0] == records[1]
    assert house.served == [1, 1]


def test_who_leads_puts_its_entry_back(house: House) -> None:
    a = house.office("a").step()
    house.peers.withdraw("coordinator")
    assert a.step().me == house.peers.find("coordinator")
    house.peers.publish("coordinator", "http://dead", "d")
    assert a.step().me == house.peers.find("coordinator")
    assert a.told == ["a is the active coordinator"]


def test_who_cannot_look_remains_what_it_was_for_a_lease(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = house.office("a").step(), house.office("b").step()

    def cut_off(_: MemoryLeadership) -> bool:
        raise StoreError("no route to the control plane")

    monkeypatch.setattr(MemoryLeadership, "campaign", cut_off)
    house.now += LEASE_S - 1
    assert a.step().desk.term is not None
    assert b.step().desk.term is None
    house.now += 1
    assert a.step().desk.term is None
    assert a.told[-1].startswith("a stands down")
    assert house.peers.find("coordinator") is None


def test_who_ends_is_followed_at_once(house: House) -> None:
    a, b = house.office("a"), house.office("b")
    house.create(a)
    stop = threading.Event()
    stop.set()
    a.candidate.run(stop)
    assert a.told[-1] == "a stands down: it ends"
    assert b.step().desk.record().version == 0


def test_a_claim_by_somebody_who_does_not_lead_ends_the_term(house: House) -> None:
    a = house.office("a")
    house.create(a)
    first = a.desk.term
    state = house.plane.read(RUN)
    house.plane.compare_and_set(state, take_over(state, "another"))
    assert a.step().desk.term is None
    assert a.step().desk.term is not first, "it leads, so it takes the run over again"
    assert house.plane.read(RUN).epoch == state.epoch + 2


def test_errors_of_a_term_that_goes_on_stay_what_they_are(house: House) -> None:
    a = house.office("a")
    house.create(a)
    house.train(1)
    with pytest.raises(Conflict, match="version"):
        a.desk.transition(1, 3)
    with pytest.raises(AttemptFailed):
        a.desk.transition(9, 0)
    assert a.desk.term is not None


def test_what_no_retry_repairs_ends_the_process(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.create(house.office("a"))
    house.now += LEASE_S

    def damaged(*_: object, **__: object) -> None:
        raise IntegrityError("the archive is damaged")

    monkeypatch.setattr(CoordinatorService, "open_run", damaged)
    b = house.office("b").step()
    with pytest.raises(IntegrityError, match="archive is damaged"):
        b.candidate.run(threading.Event())
