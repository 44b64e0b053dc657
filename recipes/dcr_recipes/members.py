"""Which instances a run counts on: the members that its control plane names (P11).

An evicted instance, or one that has not joined yet, serves nothing, so nobody waits for it.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from dcr.errors import RefitError
from dcr.model import ControlState

Members = Callable[[], Collection[str]]
"""Names of the instances that must serve what is committed, as of now."""


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
