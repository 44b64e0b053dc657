"""What the trainer's life asks of any way to refit, and what it is told of each refit."""

from dataclasses import dataclass
from typing import Protocol

from dcr.model import AuditTable


@dataclass(frozen=True, slots=True)
class Position:
    """What the runtimes serve: ``version`` holds the weights after training step ``step``."""

    version: int
    step: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One refit. ``seconds`` and ``num_attempts`` are None if a crash kept them from being reported.

    ``manifest`` names the list of its payloads in the archive; empty for a dense refit. ``left_out`` are
    the instances that it was committed without (P11). ``pause_s``: for how many seconds the gate was shut of
    the instance that was shut longest, None if that is not known.
    """

    version: int
    num_changed: int
    num_elements: int
    payload_bytes: int
    dense_bytes: int
    seconds: float | None
    num_attempts: int | None
    manifest: str = ""
    left_out: tuple[str, ...] = ()
    pause_s: float | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """Digests of the committed version's tensors, and the key that they were made with (DESIGN B6)."""

    table: AuditTable
    key: str


class Refitter(Protocol):
    """How a candidate becomes the served version. Every rank calls every method, in the same order.

    ``reads_export``: it moves the gathered candidate, whose making is then part of the refit's time.
    """

    @property
    def reads_export(self) -> bool:
        """See the class."""
        ...

    def open(self) -> Position:
        """Create the run with the present weights, those of step 0, or find what is committed."""
        ...

    def serve(self, version: int) -> None:
        """Have the committed ``version``, whose weights are present now, served; asked before each step."""
        ...

    def sync(self, step: int, parent: int) -> Figures:
        """Publish the present weights, those of ``step``, as version ``parent`` + 1; then it is served."""
        ...

    def audit(self) -> Audit | None:
        """What the committed version's weights must digest to; None if this way of refitting keeps none."""
        ...

    def last(self) -> Figures:
        """Figures of the committed version, as far as they are still known."""
        ...
