"""Which instances a run counts on: the members that its control plane names (P11).

An evicted instance, or one that has not joined yet, serves nothing, so nobody waits for it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dcr.errors import RefitError
from dcr.model import ControlState

Members = Callable[[], Collection[str]]
"""Names of the instances that must serve what is committed, as of now."""


@dataclass(slots=True)
class Silence:
    """How long one instance has not answered. ``longest_s`` None: it may stay silent for ever.

    One that hangs is evicted only in the course of a transition, so between two of them it is not waited for
    longer than the transition would wait.
    """

    longest_s: float | None
    _since: float | None = None

    def answered(self) -> None:
        """It has answered."""
        self._since = None

    def is_too_long(self, asked_at: float, now: float) -> bool:
        """It has not answered what it was asked at ``asked_at``; whether it is to be left out."""
        if self._since is None:
            self._since = asked_at
        return self.longest_s is not None and now - self._since >= self.longest_s


@dataclass(frozen=True, slots=True)
class ReadMembers:
    """``Members`` from the control plane; all of ``everyone`` while it cannot be read."""

    read: Callable[[], ControlState]
    everyone: tuple[str, ...]

    def __call__(self) -> Collection[str]:
        """See ``Members``."""
        try:
            return self.read().members
        except RefitError:  # away for now: waiting for one too many costs time only
            return self.everyone
