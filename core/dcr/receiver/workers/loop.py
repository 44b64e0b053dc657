"""Calls of an engine of this process, whose event loop runs in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent import futures
from typing import Any, TypeVar

from dcr.errors import RefitError, Unreachable

T = TypeVar("T")


class EngineLoop:
    """What an engine is asked, each for ``deadline_s`` at most. Thread-safe.

    A call that is late goes on, and no other begins before it has ended. Cancelled, it would still be done;
    its answer may be taken for that of the next call, and its writes may follow what comes after a fence.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deadline_s: float) -> None:
        self._loop = loop
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._late: set[futures.Future[Any]] = set()

    def wait(self, step: Coroutine[Any, Any, T]) -> T:
        """The answer of ``step``, from the engine's loop.

        Raises:
            Unreachable: the engine is dead or late, or what it was asked before has not ended.
        """
        try:
            self._await_late()
        except Unreachable:
            step.close()
            raise
        future = asyncio.run_coroutine_threadsafe(step, self._loop)
        try:
            return future.result(self._deadline_s)
        except RefitError:
            raise
        except Exception as err:  # the border: engines raise classes of their own
            if future.done():
                raise Unreachable(f"the engine does not answer: {type(err).__name__}: {err}") from err
            self._keep(future)
            raise Unreachable(f"the engine did not answer in {self._deadline_s:g} s") from err

    def _keep(self, future: "futures.Future[Any]") -> None:
        def ended(_: object) -> None:
            with self._lock:
                self._late.discard(future)

        with self._lock:
            self._late.add(future)
        future.add_done_callback(ended)

    def _await_late(self) -> None:
        with self._lock:
            late = set(self._late)
        if late and futures.wait(late, self._deadline_s).not_done:
            raise Unreachable(
                f"the engine has not ended what it was asked before, for {self._deadline_s:g} s more; "
                "nothing is asked of it until then"
            )
