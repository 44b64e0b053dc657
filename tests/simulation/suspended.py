"""Threads that run only when they are told to, so that nothing depends on luck.

One of them is a receiver's pump that is stopped in the midst of a payload, and holds the receiver's
lock: whoever wants that has to let it come to its end first, as a real lock would.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from dcr import observe
from dcr.errors import RefitError
from tests.simulation.parties import Crash


class Turns:
    """Two threads of which one runs at a time: the simulation's, and the one that ``pause`` is called in."""

    def __init__(self) -> None:
        self._mine, self._theirs = threading.Semaphore(0), threading.Semaphore(0)

    def pause(self) -> None:
        """In the thread: let the simulation go on, until ``resume``."""
        self._theirs.release()
        self._mine.acquire()

    def end(self) -> None:
        """In the thread, last: it does nothing more."""
        self._theirs.release()

    def wait(self) -> None:
        """In the simulation: the thread was started; return when it pauses or ends."""
        self._theirs.acquire()

    def resume(self) -> None:
        """In the simulation: let the thread go on; return when it pauses or ends."""
        self._mine.release()
        self._theirs.acquire()

    def let_end(self, thread: threading.Thread) -> None:
        """In the simulation: let the thread go on for the last time; return when it has ended."""
        self._mine.release()
        thread.join()


class SuspendedPump:
    """``work`` in a thread of its own, stopped at its ``at``-th copy; ``left`` steps until it goes on."""

    def __init__(self, work: Callable[[], object], at: int, left: int) -> None:
        self.left = left
        self._work = work
        self._at = at
        self._killed = False
        self.is_over = False
        self._turns = Turns()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._turns.wait()

    @property
    def is_mine(self) -> bool:
        """Whether the caller is this pump."""
        return threading.current_thread() is self._thread

    def finish(self, *, killed: bool = False) -> None:
        """Let it come to its end, or die where it stands."""
        self._killed = killed
        self._turns.resume()
        self._thread.join()

    def _run(self) -> None:
        with suppress(RefitError, Crash), observe.listening(self._pass_point):
            self._work()
        self.is_over = True
        self._turns.end()

    def _pass_point(self, event: observe.Event) -> None:
        if event.name != "receiver.item.copy" or not self.is_mine:
            return
        self._at -= 1
        if self._at == 0:
            self._turns.pause()
            if self._killed:
                raise Crash(event.name)


class TurnLock:
    """The receiver's lock. Reentrant; waiting for it means that the pump inside comes to its end."""

    def __init__(self) -> None:
        self.pump: SuspendedPump | None = None
        self.num_waits = 0

    def __enter__(self) -> None:
        if self.pump is not None and not self.pump.is_mine:
            self.wait_for_pump()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to release: there is one thread at a time."""

    def wait_for_pump(self) -> None:
        """Return when no write is under way."""
        pump, self.pump = self.pump, None
        if pump is not None:
            self.num_waits += 1
            pump.finish()
