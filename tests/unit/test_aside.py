"""Calls that are left behind."""

import threading

import pytest

from dcr.errors import Conflict
from dcr.refit.aside import unless

WAIT_S = 30.0


def fail() -> None:
    raise Conflict("replaced")


def test_an_answer_or_an_error_comes_as_it_is() -> None:
    stop = threading.Event()
    assert unless(stop, lambda: 7, "seven") == 7
    with pytest.raises(Conflict, match="replaced"):
        unless(stop, fail, "fail")


def test_what_is_stopped_is_left_behind() -> None:
    stop, released, ended = threading.Event(), threading.Event(), threading.Event()

    def call() -> int:
        stop.set()
        assert released.wait(WAIT_S)
        ended.set()
        return 7

    assert unless(stop, call, "slow") is None
    assert not ended.is_set()
    released.set()
    assert ended.wait(WAIT_S)


def test_nothing_begins_once_it_is_stopped() -> None:
    stop = threading.Event()
    stop.set()
    assert unless(stop, fail, "never") is None
