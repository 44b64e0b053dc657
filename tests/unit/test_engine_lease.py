"""An engine that serves by itself obeys a serving lease (DESIGN P11)."""

import threading
import time
from collections.abc import Callable

import pytest
from tests.unit.engine_controls import Recorded
from typing_extensions import override

from dcr.errors import ConfigError, Unreachable
from dcr.receiver.lease import Lease
from dcr.receiver.workers.control import ControlClosed, Lends
from dcr.receiver.workers.gate import EngineGate


class Fronted(Recorded):
    """One with a front of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.lent: list[float] = []
        self.looks = True
        self.late = False

    def lend(self, left_s: Callable[[], float]) -> None:
        if not self.looks:
            raise ConfigError("no such route")
        if self.late:
            self.late = False
            raise Unreachable("late")
        self.lent.append(left_s())


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def leased(engine: Recorded) -> tuple[EngineGate, Lease, Clock]:
    clock = Clock()
    lease = Lease(clock)
    gate = EngineGate(engine)
    gate.serve_under(lease)
    gate.close()
    return gate, lease, clock


def test_it_runs_from_the_first_grant_to_the_end_of_the_last() -> None:
    engine = Recorded()
    gate, lease, clock = leased(engine)
    gate.open(1, changed=True)
    assert engine.told == ["pause", "reset", "version 1"]
    assert not engine.runs()
    assert not gate.is_open
    assert gate.version == 1
    lease.extend(clock.now + 10)
    until(lambda: gate.is_open)
    assert engine.runs()
    clock.now += 10
    assert not gate.is_open
    until(lambda: not engine.runs())
    lease.extend(clock.now + 10)
    until(lambda: gate.is_open)
    assert engine.told[3:] == ["resume", "pause", "resume"]


def quiet(engine: Recorded) -> tuple[EngineGate, Lease, Clock]:
    """As ``leased``, followed by nobody but the test."""
    clock = Clock()
    lease = Lease(clock)
    gate = EngineGate(engine)
    gate._lease = lease
    gate.close()
    return gate, lease, clock


def test_it_stops_though_it_was_never_heard_that_it_ran_again() -> None:
    engine = Recorded()
    gate, lease, clock = quiet(engine)
    gate.open(1, changed=True)
    lease.extend(clock.now + 10)
    engine.unheard = "resume"
    with pytest.raises(Unreachable):
        gate.follow_lease()
    assert engine.runs()
    clock.now += 10
    gate.follow_lease()
    assert not engine.runs()


def test_it_stops_though_it_was_never_heard_that_it_was_opened() -> None:
    engine = Recorded()
    gate, lease, clock = quiet(engine)
    lease.extend(clock.now + 10)
    engine.unheard = "resume"
    with pytest.raises(Unreachable):
        gate.open(1, changed=True)
    assert engine.runs()
    gate.follow_lease()
    assert not engine.runs()
    gate.open(1, changed=True)
    assert engine.runs()
    assert gate.is_open


def test_a_lease_that_is_ended_stops_it() -> None:
    engine = Recorded()
    gate, lease, clock = leased(engine)
    lease.extend(clock.now + 10)
    gate.open(1, changed=True)
    assert engine.runs()
    lease.end()
    until(lambda: not engine.runs())
    assert not gate.is_open


def test_somebody_is_asked_for_a_lease_once_it_would_run() -> None:
    wanted = threading.Event()

    class Wanted(Lease):
        @override
        def want(self) -> None:
            wanted.set()

    gate = EngineGate(Recorded())
    gate.serve_under(Wanted())
    gate.close()
    assert not wanted.wait(0.6), "a closed gate needs none"
    gate.open(1, changed=True)
    assert wanted.wait(30)


def test_a_closed_gate_is_not_opened_by_a_grant_nor_after_it() -> None:
    engine = Recorded()
    gate, lease, clock = leased(engine)
    gate.open(1, changed=True)
    gate.close()
    lease.extend(clock.now + 10)
    gate.follow_lease()
    assert not engine.runs()
    clock.now += 10
    gate.open(1, changed=False)
    gate.follow_lease()
    assert not engine.runs()
    gate.close()
    lease.extend(clock.now + 10)
    gate.open(2, changed=True)
    assert engine.runs()
    assert "resume" not in engine.told[:-1]


def test_a_dead_engine_is_told_again() -> None:
    engine = Recorded()
    gate, lease, clock = leased(engine)
    lease.extend(clock.now + 10)
    gate.open(1, changed=True)
    engine.dead = True
    clock.now += 10
    with pytest.raises(Unreachable):
        gate.follow_lease()
    engine.dead = False
    until(lambda: not engine.runs())


def test_a_front_of_its_own_is_lent_the_rest_and_told_of_the_end() -> None:
    engine = Fronted()
    assert isinstance(engine, Lends)
    assert not isinstance(Recorded(), Lends)
    _, lease, clock = leased(engine)
    assert len(engine.lent) == 1
    assert engine.lent[0] < 0, "asked at once whether it looks at leases"
    engine.late = True
    lease.extend(clock.now + 10)
    until(lambda: engine.lent[1:] == [10])
    lease.end()
    until(lambda: len(engine.lent) == 3)
    assert engine.lent[2] < 0


def test_a_front_that_does_not_look_at_leases_is_refused() -> None:
    engine = Fronted()
    engine.looks = False
    with pytest.raises(ConfigError, match="no such route"):
        EngineGate(engine).serve_under(Lease())


def test_nobody_follows_the_lease_of_a_control_that_was_closed() -> None:
    """Its thread ends, and with it the warnings."""

    class Closing(Fronted):
        is_closed = False

        @override
        def lend(self, left_s: Callable[[], float]) -> None:
            if self.is_closed:
                raise ControlClosed("closed")
            super().lend(left_s)

    before = set(threading.enumerate())
    engine = Closing()
    _, lease, clock = leased(engine)
    (follower,) = set(threading.enumerate()) - before
    lease.extend(clock.now + 10)
    until(lambda: len(engine.lent) == 2)
    assert follower.is_alive()
    engine.is_closed = True
    lease.extend(clock.now + 20)
    follower.join(30)
    assert not follower.is_alive()
