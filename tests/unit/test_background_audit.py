"""The audit's thread: it keeps its rate, survives failures, pauses, and has lost instances repaired."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr.errors import StoreError
from dcr.refit.background import MIB, BackgroundAudit, pause_s


class Instance:
    """A receiver whose steps are counted; ``answer`` is what each does."""

    def __init__(self, answer: Callable[[int], int]) -> None:
        self.lost = threading.Event()
        self.steps = count(1)
        self.seen = threading.Semaphore(0)
        self.repaired = threading.Event()
        self._answer = answer

    def examine(self) -> int:
        """See ``Examined``."""
        try:
            return self._answer(next(self.steps))
        finally:
            self.seen.release()

    def repair(self) -> None:
        """Clean again."""
        self.lost.clear()
        self.repaired.set()

    def see(self, num: int) -> bool:
        """Wait until ``num`` further steps have ended."""
        return all(self.seen.acquire(timeout=30) for _ in range(num))


@contextmanager
def auditing(instance: Instance, rate_mib_s: float = 1000.0) -> Iterator[BackgroundAudit]:
    """The thread, ended afterwards."""
    audit = BackgroundAudit(instance, rate_mib_s, repair=instance.repair, idle_s=0.001)
    try:
        yield audit
    finally:
        audit.close()


@given(st.integers(1, 1 << 30), st.floats(0, 10), st.floats(1, 1e10))
def test_the_rate_holds_and_half_of_the_time_is_left_to_others(
    num_bytes: int, took_s: float, bytes_per_s: float
) -> None:
    pause = pause_s(num_bytes, took_s, bytes_per_s)
    assert pause >= took_s
    assert num_bytes <= bytes_per_s * (pause + took_s) * (1 + 1e-9)


def test_it_goes_on_after_failures() -> None:
    def answer(step: int) -> int:
        if step == 1:
            raise StoreError("the store is away")
        if step == 2:
            raise RuntimeError("anything")
        return 1024

    instance = Instance(answer)
    with auditing(instance):
        assert instance.see(5)


def test_a_lost_instance_is_repaired_before_anything_else_is_read() -> None:
    instance = Instance(lambda _: 0)
    instance.lost.set()
    with auditing(instance):
        assert instance.repaired.wait(30)
        assert instance.see(1)


def test_a_failing_repair_is_tried_again() -> None:
    instance = Instance(lambda _: 0)
    tries = count(1)
    done = threading.Event()

    def repair() -> None:
        if next(tries) < 3:
            raise StoreError("not yet")
        instance.lost.clear()
        done.set()

    instance.lost.set()
    audit = BackgroundAudit(instance, 1.0, repair=repair, idle_s=0.001)
    try:
        assert done.wait(30)
    finally:
        audit.close()


def test_while_paused_nothing_is_read_but_repairs_go_on() -> None:
    instance = Instance(lambda _: 1)
    with auditing(instance) as audit:
        assert instance.see(1)
        audit.pause()
        audit.pause()
        instance.lost.set()
        assert instance.repaired.wait(30)
        audit.resume()
        assert instance.see(2)


@pytest.mark.parametrize("rate", [0.0, -1.0])
def test_without_a_rate_it_only_repairs(rate: float) -> None:
    instance = Instance(lambda _: MIB)
    instance.lost.set()
    with auditing(instance, rate):
        assert instance.repaired.wait(30)
    assert next(instance.steps) == 1
