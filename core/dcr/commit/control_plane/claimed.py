"""A control plane that remembers which epoch its own coordinator claimed."""

from dcr.commit.control_plane.base import ControlPlane
from dcr.model import ControlState, RunId


class ClaimedPlane:
    """``ControlPlane`` over another one, of one coordinator for one term. Thread-safe."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._epoch: int | None = None

    def create(self, state: ControlState) -> None:
        """See ``ControlPlane.create``."""
        self._epoch = state.epoch
        self._plane.create(state)

    def read(self, run: RunId) -> ControlState:
        """See ``ControlPlane.read``."""
        return self._plane.read(run)

    def compare_and_set(self, expected: ControlState, state: ControlState) -> None:
        """See ``ControlPlane.compare_and_set``."""
        if self._epoch is None or state.epoch > self._epoch:
            self._epoch = state.epoch  # before it is sent: our own claim must never look like another's
        self._plane.compare_and_set(expected, state)

    def is_replaced(self, run: RunId) -> bool:
        """Whether another coordinator has claimed ``run`` since this one did; it may not have yet.

        Raises:
            StoreError: the control plane cannot be read.
        """
        epoch = self._epoch
        return epoch is not None and self._plane.read(run).epoch > epoch
