"""What the protocol side of a receiver asks of the side that writes; free of torch (DESIGN R9-R13)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from dcr.codec import Payload
from dcr.model import AuditTable, Bits, Classification

Cancelled: TypeAlias = Callable[[], bool]


def never() -> bool:
    """For callers that cannot be cancelled."""
    return False


@dataclass(frozen=True, slots=True)
class ApplyStats:
    """Items of one payload: ``num_items`` in all, of them ``num_skipped`` not placed here; values written."""

    num_items: int
    num_skipped: int
    num_values: int


class Writer(Protocol):
    """Writes one rank's resident storage; ``dcr.receiver.apply.Applier`` is the one over a native loader.

    Call order: ``prewarm``; then per attempt ``begin``, ``apply``*, ``synchronize``, ``check``; or
    ``restore`` or ``audit`` at any time between attempts. Never called concurrently.
    """

    def prewarm(self) -> Classification:
        """Classify every canonical name; nothing is written. Idempotent. Raises UnsupportedPath."""
        ...

    def begin(self) -> None:
        """Forget what earlier attempts wrote: ``check`` covers what is applied from here on."""
        ...

    def apply(self, payload: Payload, *, allow_xor: bool = True, cancelled: Cancelled = never) -> ApplyStats:
        """Write all items of one payload, asking ``cancelled`` between items. Raises AttemptFailed."""
        ...

    def synchronize(self) -> None:
        """Return when every write has reached the device."""
        ...

    def check(self) -> None:
        """Prove by reading that everything applied since ``begin`` is in place. Raises AttemptFailed."""
        ...

    def restore(self, tensors: dict[str, Bits], table: AuditTable, *, cancelled: Cancelled = never) -> None:
        """Load a whole version, by primary name, and prove it against ``table``. Raises IntegrityError."""
        ...

    def audit(self) -> AuditTable:
        """Digest what is resident, by canonical name. Raises IntegrityError if copies of a tensor differ."""
        ...
