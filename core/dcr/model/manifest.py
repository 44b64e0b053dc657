"""Immutable lists that say what an attempt consists of (DESIGN P3, P7, B5, B6)."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from dcr.model.ids import AttemptId, RunId


class AuditDigest(NamedTuple):
    """Additive digest: ``total`` is a sum modulo 2^61 - 1, ``count`` its number of elements (B6)."""

    total: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody calls


AuditTable: TypeAlias = dict[str, AuditDigest]
"""Canonical name (aliases included) -> digest of the whole tensor."""


@dataclass(frozen=True, slots=True)
class PayloadRef:
    """Names one payload by content. ``digest`` is the BLAKE2b-128 in its head, hexadecimal.

    ``attempt`` is the earlier attempt of the same candidate that it was sent under and is stored at (P6);
    None: the one of the list that names it.
    """

    owner: int
    sequence: int
    digest: str
    num_bytes: int
    attempt: AttemptId | None = None


@dataclass(frozen=True, slots=True)
class OwnerClose:
    """An owner's closed list: after it the owner publishes nothing more under ``attempt`` (P7).

    ``audit`` holds the owner's partial digests of the candidate, by canonical name; ``num_changed``
    counts unique changed source elements out of ``num_elements`` owned ones; ``candidate`` digests
    all partial digests, so a retry that rebuilds other bits is noticed (P5).
    """

    attempt: AttemptId
    owner: int
    payloads: tuple[PayloadRef, ...]
    audit: dict[str, AuditDigest]
    num_changed: int
    num_elements: int
    candidate: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything that leads from ``parent_version`` to ``attempt.version``; complete by construction.

    ``parent`` names the previous committed manifest by attempt and digest (None for the anchor),
    which makes the committed payloads a chain. ``overwrite_only``: every item is an absolute value.
    ``required`` names the receivers without whose acknowledgment it is not committed (P11). A later
    anchor is a manifest beside its version's own: the same attempt, parent version -1, all planes.
    """

    run: RunId
    attempt: AttemptId
    parent_version: int
    parent: tuple[AttemptId, str] | None
    catalogue: str
    overwrite_only: bool
    owners: tuple[OwnerClose, ...]
    required: tuple[str, ...] = ()

    @property
    def is_later_anchor(self) -> bool:
        """Whether it lists all planes of a version that has a delta of its own, too."""
        return self.parent_version < 0 < self.attempt.version

    @property
    def num_bytes(self) -> int:
        """Bytes of all payloads."""
        return sum(ref.num_bytes for ref in self.payloads)

    @property
    def payloads(self) -> tuple[PayloadRef, ...]:
        """All payloads in declared order: by owner, then sequence."""
        return tuple(ref for close in self.owners for ref in close.payloads)

    def attempt_of(self, ref: PayloadRef) -> AttemptId:
        """The attempt that the payload's head names and that it is stored at: this one, or an earlier one."""
        return ref.attempt or self.attempt
