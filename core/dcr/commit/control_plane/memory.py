"""In-process control plane: tests, the simulation, and single-process runs."""

import threading

from dcr.commit.control_plane.base import require_same_run
from dcr.errors import Conflict, MissingObject
from dcr.model import ControlState, RunId


class MemoryControlPlane:
    """``ControlPlane`` in a dictionary behind a lock. Nothing survives the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._states: dict[RunId, ControlState] = {}

    def create(self, state: ControlState) -> None:
        """Create the run's value; raises Conflict if it exists."""
        with self._lock:
            if state.run in self._states:
                raise Conflict(f"run {state.run} exists already")
            self._states[state.run] = state

    def read(self, run: RunId) -> ControlState:
        """Return the value; raises MissingObject without one."""
        with self._lock:
            if run not in self._states:
                raise MissingObject(f"no run {run} in this control plane")
            return self._states[run]

    def compare_and_set(self, expected: ControlState, state: ControlState) -> None:
        """Replace ``expected`` by ``state``; raises Conflict if the value is another."""
        require_same_run(expected, state)
        with self._lock:
            current = self._states.get(expected.run)
            if current != expected:
                found = "nothing" if current is None else f"revision {current.revision}"
                raise Conflict(f"run {expected.run}: expected revision {expected.revision}, found {found}")
            self._states[expected.run] = state
