"""Leases, the gate under one, and the thread that renews them; no test waits for time to pass."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from typing_extensions import override

from dcr.commit.remote import Party
from dcr.config import CommitConfig
from dcr.errors import Conflict, Unreachable
from dcr.model import GENESIS, AttemptId, LeaseGrant
from dcr.receiver.gate import ServingGate
from dcr.receiver.lease import Lease, serving_clock
from dcr.refit.lease import LeaseKeeper

FIRST = AttemptId(1, 1)
WAIT_S = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> Lease:
    return Lease(clock)


# ---- the lease ----


def test_a_lease_is_valid_before_its_end_only(clock: Clock, lease: Lease) -> None:
    assert not lease.valid()
    lease.extend(110.0)
    assert (lease.valid(), lease.left_s()) == (True, 10.0)
    clock.now = 110.0
    assert not lease.valid()


def test_a_late_answer_does_not_shorten_it_and_nothing_revives_an_ended_one(
    clock: Clock, lease: Lease
) -> None:
    lease.extend(120.0)
    lease.extend(110.0)
    assert lease.left_s() == 20.0
    lease.end()
    lease.extend(1000.0)
    assert not lease.valid()


def test_an_end_in_the_midst_of_an_extension_is_the_end(clock: Clock, lease: Lease) -> None:
    ending = threading.Thread(target=lease.end)

    class Granted(float):
        @override
        def __gt__(self, other: float) -> bool:
            ending.start()
            ending.join(0.2)
            return super().__gt__(other)

    lease.extend(Granted(clock.now + 30))
    ending.join()
    assert not lease.valid()


def test_the_clock_goes_on() -> None:
    assert serving_clock() <= serving_clock()


# ---- the gate under a lease ----


def gate_under(lease: Lease, admit_deadline_s: float = 0.01) -> ServingGate:
    gate = ServingGate(admit_deadline_s=admit_deadline_s, lease=lease)
    gate.open(3, changed=True)
    return gate


def test_an_open_gate_without_a_lease_admits_nobody_and_says_so(clock: Clock, lease: Lease) -> None:
    gate = gate_under(lease)
    assert (gate.is_open, gate.version) == (False, 3)
    with pytest.raises(Unreachable, match="gate without a lease"), gate.enter():
        pytest.fail("admitted")
    lease.extend(clock.now + 1)
    assert gate.is_open
    with gate.enter() as version:
        assert version == 3
    gate.close()
    with pytest.raises(Unreachable, match="gate closed"), gate.enter():
        pytest.fail("admitted")


def test_a_waiting_request_is_admitted_as_soon_as_the_lease_comes(clock: Clock, lease: Lease) -> None:
    gate = gate_under(lease, admit_deadline_s=WAIT_S)
    lease.wait_wanted(0.0)

    def ask() -> int:
        with gate.enter() as version:
            return version

    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask)
        lease.wait_wanted(WAIT_S)  # it says that it waits
        lease.extend(clock.now + 1)
        assert answer.result(WAIT_S) == 3


def test_an_answer_whose_lease_expired_in_flight_is_dropped(clock: Clock, lease: Lease) -> None:
    gate = gate_under(lease)
    lease.extend(clock.now + 10)
    answers: list[int] = []

    def answer() -> None:
        with gate.enter() as version:
            clock.now += 10
        answers.append(version)

    with pytest.raises(Unreachable, match="the lease ran out while this was answered"):
        answer()
    assert answers == []
    gate.close()  # it has left the gate all the same
    gate.open(3, changed=False)
    lease.extend(clock.now + 10)
    with gate.enter():
        clock.now += 9
        lease.extend(clock.now + 10)
        clock.now += 9  # renewed in flight


def test_a_request_that_fails_by_itself_fails_as_it_did(clock: Clock, lease: Lease) -> None:
    gate = gate_under(lease)
    lease.extend(clock.now + 10)

    def fail() -> None:
        with gate.enter():
            clock.now += 10
            raise ValueError("no such token")

    with pytest.raises(ValueError, match="no such token"):
        fail()
    gate.close()


# ---- the keeper ----


class Receiver:
    def __init__(self) -> None:
        self.name, self.incarnation = "runtime-0", "i1"
        self.base: AttemptId | None = GENESIS


class Coordinator:
    """Answers requests for leases as it is told, one by one; ``asked`` counts them."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.asked = threading.Semaphore(0)
        self.seen: list[tuple[str, dict[str, object]]] = []
        self.answer: Callable[[], LeaseGrant] = lambda: LeaseGrant(30.0)

    def __call__(
        self, name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> LeaseGrant:
        self.seen.append((method, params))
        try:
            return self.answer()
        finally:
            self.asked.release()

    def wait_asked(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.asked.acquire(timeout=WAIT_S)


@pytest.fixture
def coordinator(clock: Clock) -> Coordinator:
    return Coordinator(clock)


@contextmanager
def keeping(
    receiver: Receiver, lease: Lease, coordinator: Coordinator, on_refused: Callable[[], None]
) -> Iterator[None]:
    party = Party("coordinator", coordinator, CommitConfig())
    keeper = LeaseKeeper(receiver, lease, party, on_refused=on_refused)
    try:
        yield
    finally:
        keeper.close()


def never() -> None:
    pytest.fail("it was not refused")


def test_a_lease_counts_from_the_moment_at_which_it_was_asked_for(
    clock: Clock, lease: Lease, coordinator: Coordinator
) -> None:
    def slowly() -> LeaseGrant:
        clock.now += 12.0
        return LeaseGrant(30.0)

    coordinator.answer = slowly
    extended = threading.Event()
    lease.on_extend(extended.set)
    with keeping(Receiver(), lease, coordinator, never):
        assert extended.wait(WAIT_S)
        assert lease.left_s() == 18.0
    params = {"receiver": "runtime-0", "incarnation": "i1", "held": GENESIS}
    assert coordinator.seen == [("renew", params)]


def test_it_is_renewed_at_once_when_somebody_waits_for_it(
    clock: Clock, lease: Lease, coordinator: Coordinator
) -> None:
    gate = ServingGate(admit_deadline_s=WAIT_S, lease=lease)
    with keeping(Receiver(), lease, coordinator, never):
        coordinator.wait_asked()
        clock.now += 100.0
        gate.open(0, changed=True)
        coordinator.wait_asked()
        with gate.enter() as version:
            assert version == 0


def test_an_engine_that_takes_long_to_pause_does_not_hold_up_a_renewal(lease: Lease) -> None:
    entered, extended = threading.Event(), threading.Event()

    class Slow:
        def close(self) -> None:
            entered.set()
            assert extended.wait(WAIT_S), "whoever renews the lease waits for the engine"

        def open(self, version: int, *, changed: bool) -> None:
            self.close()

    gate = ServingGate(Slow(), lease=lease)
    for move in (gate.close, lambda: gate.open(1, changed=True)):
        entered.clear()
        extended.clear()
        with ThreadPoolExecutor(1) as pool:
            moving = pool.submit(move)
            assert entered.wait(WAIT_S)
            lease.extend(500.0)
            extended.set()
            moving.result()


def test_without_an_answer_it_goes_on_asking_and_serving_ends_by_itself(
    clock: Clock, lease: Lease, coordinator: Coordinator
) -> None:
    with keeping(Receiver(), lease, coordinator, never):
        coordinator.wait_asked()
        coordinator.answer = _raise(Unreachable("nobody there"))
        lease.want()
        coordinator.wait_asked(2)
        clock.now += 30.0
        assert not lease.valid()
        extended = threading.Event()
        lease.on_extend(extended.set)
        coordinator.answer = lambda: LeaseGrant(30.0)
        assert extended.wait(WAIT_S)
    assert lease.valid()


@pytest.mark.parametrize("base", [GENESIS, None])
def test_one_that_is_refused_for_what_it_holds_asks_to_be_admitted(
    lease: Lease, coordinator: Coordinator, base: AttemptId | None
) -> None:
    """Clean, torn or empty: an evicted receiver is told nothing by anybody else."""
    receiver, admitted = Receiver(), threading.Event()
    receiver.base = base
    coordinator.answer = _raise(Conflict("runtime-0 is not a member"))

    def be_admitted() -> None:
        receiver.base = FIRST
        coordinator.answer = lambda: LeaseGrant(30.0)
        admitted.set()

    with keeping(receiver, lease, coordinator, be_admitted):
        assert admitted.wait(WAIT_S)
        coordinator.wait_asked(4)
    assert [params["held"] for _, params in coordinator.seen] == [base, base, base, FIRST]
    assert lease.valid()


def test_a_refusal_of_what_it_no_longer_holds_means_nothing(lease: Lease, coordinator: Coordinator) -> None:
    """A commit came in between: it asked with v and is at v+1 by the time of the answer."""
    receiver = Receiver()
    held = iter([AttemptId(n, n) for n in range(1, 6)])

    def move_on() -> LeaseGrant:
        moved = next(held, None)
        if moved is None:
            return LeaseGrant(30.0)
        receiver.base = moved
        raise Conflict("another version is committed")

    coordinator.answer = move_on
    with keeping(receiver, lease, coordinator, never):
        coordinator.wait_asked(6)
    assert lease.valid()


def test_an_admission_that_fails_does_not_end_the_thread(
    lease: Lease, coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.answer = _raise(Conflict("not a member"))

    def fail() -> None:
        coordinator.answer = lambda: LeaseGrant(30.0)
        raise RuntimeError("the archive is damaged")

    with keeping(Receiver(), lease, coordinator, fail):
        coordinator.wait_asked(4)
    assert "renewing the lease failed" in caplog.text
    assert lease.valid()


def test_one_that_leaves_serves_no_more_and_says_so(lease: Lease, coordinator: Coordinator) -> None:
    extended = threading.Event()
    lease.on_extend(extended.set)
    keeper = LeaseKeeper(
        Receiver(), lease, Party("coordinator", coordinator, CommitConfig()), on_refused=never
    )
    assert extended.wait(WAIT_S)
    keeper.leave()
    assert coordinator.seen[-1] == ("leave", {"receiver": "runtime-0", "incarnation": "i1"})
    lease.extend(1e9)
    assert not lease.valid()


def _raise(error: Exception) -> Callable[[], LeaseGrant]:
    def fail() -> LeaseGrant:
        raise error

    return fail
