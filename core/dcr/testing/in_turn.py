"""Receivers that decode in the thread that applies, for tests in which one thread does everything."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import TypeVar
from unittest.mock import patch

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def decoding_in_turn() -> Iterator[None]:
    """Inside the block no payload is decoded before the one ahead of it is applied."""
    with patch("dcr.receiver.session.ahead", _in_turn):
        yield


@contextmanager
def _in_turn(source: Generator[T, None, None], work: Callable[[T], R]) -> Iterator[Iterator[R]]:
    with closing(source):
        yield map(work, source)
