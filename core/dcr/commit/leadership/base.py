"""Who among the coordinators of a run should be active (DESIGN R17, P10). Liveness only.

Two may believe so at the same time: one that was stopped and has not looked yet, beside its
successor. Nothing is lost by that: every write of a coordinator is compared with the epoch that it
claimed (``transitions.take_over``), so the control plane refuses the older one. Leadership keeps
coordinators from taking the run from one another all the time, and says when a standby must act.
"""

from typing import Protocol


class Leadership(Protocol):
    """One candidate's view of one run's leadership. All methods may raise StoreError.

    ``campaign`` is called again and again, at least thrice in each lease; whoever stops doing so is
    replaced once the lease has passed. A candidate that comes back under its old name within its
    lease is taken for the same one.
    """

    def campaign(self) -> bool:
        """Become the active one if nobody else is, or remain it; whether this candidate is now."""
        ...

    def resign(self) -> None:
        """Let another one follow at once. Idempotent; nothing happens unless this candidate leads."""
        ...

    def holder(self) -> str:
        """Name of the active one, possibly dead within its lease; empty: nobody."""
        ...
