"""The one durable compare-and-set value of a run (paper section 6.3, DESIGN R16, P1-P4).

A control plane only stores and compares; ``dcr.commit.transitions`` says what may be written.
"""

from typing import Protocol

from dcr.errors import ConfigError, IntegrityError, PayloadError
from dcr.model import ControlState, RunId, from_json


class ControlPlane(Protocol):
    """Linearizable register, one ControlState per run. All methods may raise StoreError."""

    def create(self, state: ControlState) -> None:
        """Create the run's value durably.

        Raises:
            Conflict: the run exists already.
            OutcomeUnknown: the answer was lost.
        """
        ...

    def read(self, run: RunId) -> ControlState:
        """Return the current value.

        Raises:
            MissingObject: there is no such run.
            IntegrityError: what is stored is no value of this run.
        """
        ...

    def compare_and_set(self, expected: ControlState, state: ControlState) -> None:
        """Replace the value durably if and only if it still equals ``expected``.

        Equality is safe against ABA because every value carries a fresh revision and writer.

        Raises:
            ConfigError: ``state`` is of another run than ``expected``; nothing was written.
            Conflict: it does not; nothing was written.
            OutcomeUnknown: the answer was lost; the write may have taken effect or may yet do so.
        """
        ...


def require_same_run(expected: ControlState, state: ControlState) -> None:
    """Refuse to put one run's value in the place of another's.

    Raises:
        ConfigError: the two are of different runs.
    """
    if state.run != expected.run:
        raise ConfigError(f"the value of run {expected.run} cannot be replaced by one of run {state.run}")


def parse_state(run: RunId, stored: bytes, where: str) -> ControlState:
    """The value of ``run`` from its canonical JSON, as found in ``where``.

    Raises:
        IntegrityError: it is no value, or one of another run.
    """
    try:
        state = from_json(ControlState, stored)
        if state.run != run:
            raise PayloadError(f"it names run {state.run}")
    except PayloadError as err:
        raise IntegrityError(f"{where}: the value of run {run} is damaged: {err}") from err
    return state
