"""Turns at an engine that takes one call at a time, whichever thread it comes from."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Line:
    """Held by one thread at a time, in the order in which they came. A thread that holds it may enter again.

    In order, because a plain lock goes again and again to a thread that calls in a loop.
    """

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._threads: deque[int] = deque()
        """The first holds the line, the others wait."""

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else is inside while this block runs."""
        me = threading.get_ident()
        with self._moved:
            again = me in self._threads
            if not again:
                self._enter(me)
        try:
            yield
        finally:
            if not again:
                with self._moved:
                    self._leave(me)

    def _enter(self, me: int) -> None:
        self._threads.append(me)
        try:
            self._moved.wait_for(lambda: self._threads[0] == me)
        except BaseException:  # a signal, say: nobody must wait for who has gone
            self._leave(me)
            raise

    def _leave(self, me: int) -> None:
        self._threads.remove(me)
        self._moved.notify_all()
