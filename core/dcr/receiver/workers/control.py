"""How the receiver steers an inference engine, wherever it runs (DESIGN R19)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

from dcr.errors import Unreachable


class ControlClosed(Unreachable):
    """Our side of the engine was closed: nothing is asked of it any more."""


class EngineControl(Protocol):
    """One engine. Calls come from any thread, one at a time; each may raise Unreachable.

    Call order around a refit: ``pause``, ``call_workers``*, ``reset_caches``, ``set_version``, ``resume``.
    """

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """Have every worker answer its part of ``calls``, see ``messages.Calls``; answers in any order."""
        ...

    def pause(self) -> None:
        """Return when no step of the model runs; requests in flight are kept, new ones wait."""
        ...

    def resume(self) -> None:
        """Go on with kept and new requests."""
        ...

    def reset_caches(self) -> None:
        """Forget everything computed with the weights; kept requests are computed again from their tokens."""
        ...

    def set_version(self, version: str) -> None:
        """Name of the weights that computed the tokens from here on."""
        ...


class OfflineEngine(EngineControl, Protocol):
    """An engine of this process, called by whichever thread needs its answer, and not thread-safe."""

    def alone(self) -> AbstractContextManager[None]:
        """Inside the block no other thread's call reaches the engine, of this control either."""
        ...


@runtime_checkable
class Lends(Protocol):
    """What an ``EngineControl`` has as well, if the engine's front is a process of its own (DESIGN P11)."""

    def lend(self, left_s: Callable[[], float]) -> None:
        """Have the front answer requests for ``left_s()`` more seconds, and for none where that is negative.

        Replaces what was lent before. Any thread may call this, beside the other calls.

        Raises:
            ConfigError: the front does not look at leases.
            Unreachable: it does not answer.
        """
        ...
