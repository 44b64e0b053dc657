"""How the receiver steers an inference engine, wherever it runs (DESIGN R19)."""

from typing import Any, Protocol


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
