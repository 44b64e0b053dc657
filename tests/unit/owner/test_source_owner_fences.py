"""The owner's endpoint: an attempt that is stopped, fenced or withdrawn ends before the answer (P8, P12)."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.unit.owner_fleets import ONE, TENSORS, THREE, TWO, XOR

from dcr import observe
from dcr.errors import (
    AttemptFailed,
    Conflict,
    RefitError,
)
from dcr.testing.toy_fleet import ToyFleet
from dcr.testing.toy_trainer import Tensors


def test_fence_orders_attempts(fleet: ToyFleet) -> None:
    owner, record = fleet.owners[0], fleet.records[0]
    assert owner.fence(TWO, record).fenced == TWO
    assert owner.fence(TWO, record).fenced == TWO
    with pytest.raises(Conflict, match="attempt 1-1 was replaced by 1-2"):
        owner.fence(ONE, record)
    with pytest.raises(Conflict, match="replaced"):
        owner.construct(ONE, record, False, XOR)
    with pytest.raises(AttemptFailed, match="never fenced"):
        owner.construct(THREE, record, False, XOR)


def test_stopped_attempt_does_not_begin(fleet: ToyFleet) -> None:
    owner, record = fleet.owners[0], fleet.records[0]
    owner.fence(TWO, record)
    owner.stop_and_wait(ONE)  # replaced: returns at once and stops nothing else
    owner.construct(TWO, record, False, XOR)
    owner.stop_and_wait(TWO)
    owner.stop_and_wait(TWO)
    with pytest.raises(AttemptFailed, match="was stopped"):
        owner.construct(TWO, record, False, XOR)


def test_stop_reaches_an_attempt_whose_fence_is_late(fleet: ToyFleet) -> None:
    owner, record = fleet.owners[0], fleet.records[0]
    owner.stop_and_wait(TWO)
    owner.fence(TWO, record)
    with pytest.raises(AttemptFailed, match="was stopped"):
        owner.construct(TWO, record, False, XOR)
    owner.fence(THREE, record)
    assert owner.construct(THREE, record, True, XOR).payloads


class Paused:
    """Holds a construction at a mark, in its own thread, until ``go``."""

    def __init__(self, fleet: ToyFleet, mark: str) -> None:
        self.order: list[str] = []
        self._inside, self._go = threading.Event(), threading.Event()
        self._mark, self._owner, self._record = mark, fleet.owners[0], fleet.records[0]
        self._pool = ThreadPoolExecutor()

    def _listen(self, event: observe.Event) -> None:
        if event.name == self._mark and not self._inside.is_set():
            self._inside.set()
            assert self._go.wait(30)

    def _construct(self) -> object:
        try:
            return self._owner.construct(ONE, self._record, False, XOR)
        finally:
            self.order.append("construct ended")

    def run(self, interrupt: Callable[[], object]) -> tuple[Future[object], Future[object]]:
        def other() -> object:
            result = interrupt()
            self.order.append("interrupt returned")
            return result

        with self._pool, observe.listening(self._listen):
            construct = self._pool.submit(self._construct)
            assert self._inside.wait(30)
            answer = self._pool.submit(other)
            running = self._owner._turn._running
            assert running is not None
            for _ in range(5000):  # until the interrupt has reached the agent; without it the order is wrong
                if running.cancelled:
                    break
                threading.Event().wait(0.001)
            self._go.set()
            assert running.cancelled
        return construct, answer


@pytest.mark.parametrize("mark", ["owner.task.after", "owner.publish.before", "owner.publish.after"])
@pytest.mark.parametrize("interrupt", ["fence", "stop_and_wait", "withdraw"])
def test_interrupt_returns_only_when_construction_has_ended(
    fleet: ToyFleet, mark: str, interrupt: str
) -> None:
    owner, record = fleet.owners[0], fleet.records[0]
    owner.fence(ONE, record)
    paused = Paused(fleet, mark)
    construct, answer = paused.run(
        {
            "fence": lambda: owner.fence(TWO, record),
            "stop_and_wait": lambda: owner.stop_and_wait(ONE),
            "withdraw": owner.withdraw,
        }[interrupt]
    )
    assert isinstance(construct.exception(), RefitError)
    assert answer.exception() is None
    assert paused.order == ["construct ended", "interrupt returned"]
    assert not any("/close/1-1/" in key for key in fleet.store.list(""))


def test_fence_gives_up_on_work_that_does_not_end(tmp_path: Path, old: Tensors) -> None:
    fleet = ToyFleet(tmp_path, TENSORS, old, deadline_s=0.0)
    record = fleet.genesis()
    owner = fleet.owners[0]
    owner.present(1)
    owner.fence(ONE, record)

    def listener(event: observe.Event) -> None:
        if event.name == "owner.task.before":  # in the constructing thread: it cannot end meanwhile
            with pytest.raises(AttemptFailed, match=r"attempt 1-1 did not end within 0.0 s"):
                owner.fence(TWO, record)

    with observe.listening(listener), pytest.raises(AttemptFailed, match="stopped while"):
        owner.construct(ONE, record, False, XOR)
    assert owner.fence(TWO, record).fenced == TWO
