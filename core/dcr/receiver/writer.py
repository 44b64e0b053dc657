"""What the protocol side of a receiver asks of the side that writes; free of torch (DESIGN R9-R13)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from dcr.codec import Payload
from dcr.errors import AttemptFailed
from dcr.model import AuditDigest, AuditTable, Bits, Classification, RankDiagnosis

Cancelled: TypeAlias = Callable[[], bool]


def never() -> bool:
    """For callers that cannot be cancelled."""
    return False


def require_wanted(cancelled: Cancelled, what: str) -> None:
    """Raise AttemptFailed if nobody waits for ``what`` any more; asked between two payloads."""
    if cancelled():
        raise AttemptFailed(f"{what} was stopped between two payloads")


@dataclass(frozen=True, slots=True)
class ApplyStats:
    """Items of one payload: ``num_items`` in all, of them ``num_skipped`` not placed here; values written."""

    num_items: int
    num_skipped: int
    num_values: int


class Slice(NamedTuple):
    """Canonical flat indices start .. stop - 1 of tensor ``name``."""

    name: str
    start: int
    stop: int


PADDING = Slice("(padding)", 0, 0)
"""What no canonical tensor reaches and must keep its constant; its digest is that of no elements."""


class Writer(Protocol):
    """Writes one instance's resident storage; ``dcr.receiver.instance.InstanceWriter`` is the one over ranks.

    Call order: ``prewarm``; then per attempt ``begin``, ``apply``*, ``synchronize``, ``check``; or
    ``rebuilt``, ``restore``, ``audit``, ``scan`` at any time between attempts. Never called concurrently.
    """

    def prewarm(self) -> Classification:
        """Classify every canonical name; nothing is written. Raises UnsupportedPath.

        Called again it answers the same, unless ``rebuilt`` has a reason: then it learns anew, and what
        storage holds must be proven again.
        """
        ...

    def rebuilt(self) -> str:
        """Why what ``prewarm`` learned no longer holds, naming it; empty if it does. Cheap."""
        ...

    def begin(self, *, clean: bool) -> None:
        """Forget what earlier attempts wrote: ``check`` covers what is applied from here on.

        ``clean``: storage holds a proven version, not a torn one (P8). Raises AttemptFailed if rebuilt.
        """
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

    def restore(
        self, tensors: Mapping[str, Bits], table: AuditTable, *, cancelled: Cancelled = never
    ) -> None:
        """Load a whole version and prove it against ``table``. Raises IntegrityError.

        ``tensors``: flat stored bits [num_elements] by primary name. If storage was rebuilt, learn anew
        first; ``prewarm`` then tells the new classes.
        """
        ...

    def audit(self) -> AuditTable:
        """Digest what is resident, by canonical name. Raises IntegrityError if copies of a tensor differ."""
        ...

    def scan(self, slices: Sequence[Slice]) -> list[AuditDigest]:
        """Digest what is resident of each slice, ``PADDING`` included. Raises IntegrityError as ``audit``."""
        ...

    def locate(self, name: str, truth: Bits) -> dict[int, tuple[tuple[int, int], ...]]:
        """Where resident bits of ``name`` are not ``truth`` [num_elements]: rank -> ranges [start, stop).

        Ranks without a difference are absent. Only for a mismatch that was found: it reads all of it.
        """
        ...

    def diagnose(self) -> tuple[RankDiagnosis, ...]:
        """How each rank takes each tensor, and why; for people."""
        ...
