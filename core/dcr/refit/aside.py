"""Calls in threads of their own, which whoever waits for them may leave behind."""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Event, Thread
from typing import TypeVar

R = TypeVar("R")
_LOOK_S = 0.1


def begun(call: Callable[[], R], name: str) -> Future[R]:
    """What ``call`` returns or raises, in a thread called ``name`` that does not outlast the process."""
    answer: Future[R] = Future()

    def run() -> None:
        try:
            answer.set_result(call())
        except BaseException as err:  # noqa: BLE001 -- the waiting thread raises it
            answer.set_exception(err)

    Thread(target=run, name=name, daemon=True).start()
    return answer


def unless(stop: Event, call: Callable[[], R], name: str) -> R | None:
    """What ``call`` returns or raises; None once ``stop`` is set: it is left behind, or never begun."""
    if stop.is_set():
        return None
    answer = begun(call, name)
    while not answer.done():
        if stop.is_set():
            return None
        wait((answer,), _LOOK_S)
    return answer.result()
