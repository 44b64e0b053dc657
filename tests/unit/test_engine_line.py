"""Turns at an engine that takes one call at a time."""

import threading

import pytest

from dcr.receiver.workers.line import Line


def waiting(line: Line, num: int) -> None:
    """Return when ``num`` threads hold the line or wait for it; they must come within some seconds."""
    for _ in range(5000):
        if len(line._threads) == num:
            return
        threading.Event().wait(0.001)
    raise AssertionError(f"{len(line._threads)} threads, not {num}")


def test_who_came_first_is_first() -> None:
    """Even though the first goes on calling in a loop."""
    line = Line()
    order: list[str] = []

    def ask(name: str) -> None:
        with line.held():
            order.append(name)

    threads = [threading.Thread(target=ask, args=(name,)) for name in "ab"]
    with line.held():
        for number, thread in enumerate(threads):
            thread.start()
            waiting(line, number + 2)
        order.append("held")
    ask("again")
    for thread in threads:
        thread.join()
    assert order == ["held", "a", "b", "again"]


def test_a_thread_that_holds_it_may_enter_again() -> None:
    line = Line()
    with line.held(), line.held():
        pass
    assert not line._threads


def test_nobody_waits_for_what_failed() -> None:
    line = Line()
    with pytest.raises(ValueError, match="gone"), line.held():
        raise ValueError("gone")
    with line.held():
        pass


def test_nobody_waits_for_who_was_interrupted_while_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line()

    def interrupted(_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(line._moved, "wait_for", interrupted)
        with pytest.raises(KeyboardInterrupt), line.held():
            pass
    with line.held():
        pass
