"""An engine's control that only writes down what it is told."""

from contextlib import AbstractContextManager
from typing import Any

from dcr.errors import Unreachable
from dcr.receiver.workers.line import Line


class Recorded:
    """An ``OfflineEngine``; ``unheard``: what is done next time, while its answer is lost."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.dead = False
        self.unheard = ""
        self.line = Line()

    def alone(self) -> AbstractContextManager[None]:
        return self.line.held()

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        return []

    def pause(self) -> None:
        self._tell("pause")

    def resume(self) -> None:
        self._tell("resume")

    def reset_caches(self) -> None:
        self._tell("reset")

    def set_version(self, version: str) -> None:
        self._tell(f"version {version}")

    def runs(self) -> bool:
        """Whether requests are computed, as far as it was told."""
        return [word for word in ("resume", *self.told) if word in ("pause", "resume")][-1] == "resume"

    def _tell(self, what: str) -> None:
        if self.dead:
            raise Unreachable("dead")
        self.told.append(what)
        if what == self.unheard:
            self.unheard = ""
            raise Unreachable("it was done, but the answer was lost")
