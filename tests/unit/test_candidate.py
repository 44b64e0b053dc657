"""Coordinators that compete for a run: roles, requests between terms, waking up behind a successor."""

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dcr import observe
from dcr.commit.context import Roster, TransitionReport
from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.control_plane.claimed import ClaimedPlane
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.driver import Driver
from dcr.commit.leadership.memory import MemoryLeadership, Seats
from dcr.commit.service import CoordinatorService
from dcr.commit.transitions import take_over
from dcr.config import CommitConfig
from dcr.errors import (
    AttemptFailed,
    Conflict,
    IntegrityError,
    OutcomeUnknown,
    StoreError,
    StoreUnreachable,
    Unreachable,
)
from dcr.model import ControlState
from dcr.refit.candidate import Candidate, Seat
from dcr.refit.desk import Desk, Term
from dcr.testing.toy_runtime import RUN
from dcr.testing.world import OWNERS, RECEIVERS, Mortal, World
from dcr.transport.peers import Peer, Peers

if TYPE_CHECKING:
    from dcr.model import CommitRecord

CONFIG = CommitConfig(max_attempts=2, retry_pause_s=0.0, collect_deadline_s=0.0)
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
    """A world of real parties with a register, a clock and a seat for coordinators."""

    peers: Peers
    world: World
    now: float = 0.0
    seats: Seats = field(init=False)

    def __post_init__(self) -> None:
        self.seats = Seats(LEASE_S, lambda: self.now)

    @property
    def plane(self) -> ControlPlane:
        return self.world.plane

    def office(self, name: str) -> Office:
        told: list[str] = []
        desk, me = Desk(name), Peer("coordinator", f"http://{name}", name)
        leadership = MemoryLeadership(self.seats, RUN, name)
        seat = Seat(leadership, LEASE_S, self.peers, me, self.new_term)
        candidate = Candidate(
            name, seat, desk, tell=told.append, clock=lambda: self.now, pause=lambda _: None
        )
        return Office(name, desk, candidate, leadership, me, told)

    def new_term(self) -> Term:
        parties = {name: Mortal(name, self.world) for name in (*OWNERS, *RECEIVERS)}
        plane = ClaimedPlane(self.plane)
        driver = Driver(plane, self.world.archive, parties, RUN, pause=lambda seconds: None)
        return Term(RUN, CoordinatorService(driver, CONFIG, Roster(OWNERS, RECEIVERS)), plane)

    def create(self, office: Office) -> None:
        """The run at v0, served by all."""
        self.world.restart_trainer()
        office.step().desk.open_run(resume=False, catalogue=self.world.catalogue)
        for name in RECEIVERS:
            office.desk.admit(name)

    def train(self, step: int) -> None:
        for source in self.world.sources:
            source.set_all(self.world.truth(step))
        for owner in self.world.owners.values():
            owner.present(step)

    def silence(self, office: Office) -> None:
        """``office`` is not heard of for a whole lease."""
        assert self.seats.held[RUN][0] == office.name
        self.now += LEASE_S

    def require_served(self, step: int) -> None:
        """All receivers serve the version of ``step``, bit for bit, and trackers hold it."""
        assert [self.world.gates[name].version for name in RECEIVERS] == [step, step]
        assert [self.world.differing_bits(name, step) for name in RECEIVERS] == [0, 0]
        assert self.world.tracker_errors(step) == []


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(Peers(tmp_path / "endpoints"), World(tmp_path / "world"))


def test_one_leads_and_is_found_and_the_other_answers_nothing(house: House) -> None:
    house.world.restart_trainer()
    a, b = house.office("a").step(), house.office("b").step().step()
    assert house.peers.find("coordinator") == a.me
    assert (a.told, b.told) == (["a is the active coordinator"], ["b stands by; a leads"])
    assert a.desk.open_run(resume=False, catalogue=house.world.catalogue).version == 0
    calls = (
        lambda: b.desk.open_run(resume=True),
        lambda: b.desk.transition(1, 0),
        lambda: b.desk.admit("runtime-0"),
        lambda: b.desk.leave("runtime-0", "i"),
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
    house.require_served(1)
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
    house.require_served(1)
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
    house.require_served(1)


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


def test_a_look_that_takes_a_whole_lease_ends_the_term(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    a = house.office("a").step()
    house.now += 2.0

    def hang(_: MemoryLeadership) -> bool:
        house.now += LEASE_S
        raise StoreError("no answer")

    monkeypatch.setattr(MemoryLeadership, "campaign", hang)
    assert a.step().desk.term is None


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


def test_a_take_over_that_the_control_plane_refuses_for_now_is_tried_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Receivers renew their leases at the successor, also while no trainer asks it for anything."""
    house.create(house.office("a"))
    house.now += LEASE_S
    refusals = [OutcomeUnknown("no answer"), StoreUnreachable("no etcd node answers")]
    compare_and_set = MemoryControlPlane.compare_and_set

    def refusing(self: MemoryControlPlane, expected: ControlState, state: ControlState) -> None:
        if len(refusals) > 1:
            raise refusals.pop()
        compare_and_set(self, expected, state)

    monkeypatch.setattr(MemoryControlPlane, "compare_and_set", refusing)
    b = house.office("b").step()
    assert len(refusals) == 1
    incarnation = house.world.receivers["runtime-0"].incarnation
    grant = b.desk.renew("runtime-0", incarnation, house.plane.read(RUN).record.attempt)
    assert grant.seconds == CONFIG.lease_s


def test_a_claim_that_landed_unseen_is_made_again(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is lost, then the control plane is away: nobody acts under the epoch that it has now."""
    a = house.office("a")
    house.create(a)
    compare_and_set = MemoryControlPlane.compare_and_set

    def away(*_: object) -> None:
        raise StoreUnreachable("no etcd node answers")

    with monkeypatch.context() as patch:

        def land(self: MemoryControlPlane, expected: ControlState, state: ControlState) -> None:
            compare_and_set(self, expected, state)
            patch.setattr(MemoryControlPlane, "read", away)
            raise OutcomeUnknown("no answer")

        patch.setattr(MemoryControlPlane, "compare_and_set", land)
        with pytest.raises(Unreachable):
            a.desk.open_run(resume=True)
    a.step().step()
    incarnation = house.world.receivers["runtime-0"].incarnation
    grant = a.desk.renew("runtime-0", incarnation, house.plane.read(RUN).record.attempt)
    assert grant.seconds == CONFIG.lease_s


def test_a_fault_while_taking_over_ends_the_process_and_another_follows(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would lead and answer nothing."""
    house.create(house.office("a"))
    house.now += LEASE_S

    def starve(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    b = house.office("b")
    with monkeypatch.context() as patch:
        patch.setattr(CoordinatorService, "open_run", starve)
        b.step()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        b.candidate.step()
    b.candidate.close()
    assert house.office("c").step().desk.record().version == 0


def test_what_no_retry_repairs_ends_the_process(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.create(house.office("a"))
    house.now += LEASE_S

    def damaged(*_: object, **__: object) -> None:
        raise IntegrityError("the archive is damaged")

    monkeypatch.setattr(CoordinatorService, "open_run", damaged)
    b = house.office("b").step()
    with pytest.raises(IntegrityError, match="archive is damaged"):
        b.candidate.run(threading.Event())
