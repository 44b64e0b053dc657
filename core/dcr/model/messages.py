"""What owners and receivers answer to the coordinator."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from dcr.model.ids import AttemptId
from dcr.model.manifest import AuditTable, OwnerClose


class Encoding(StrEnum):
    """How an item's values act on the resident element (paper section 6.1, DESIGN B3).

    XOR: mask of any width. DELTA16: new minus old bit pattern modulo 2^16, for 2-byte dtypes only.
    Both build on the resident bits and are not idempotent. OVERWRITE: the new stored bits.
    """

    XOR = "xor"
    DELTA16 = "delta16"
    OVERWRITE = "overwrite"


class PathClass(StrEnum):
    """What a loader path accepts, from least to most restrictive (DESIGN R6, R11).

    SKIP: this rank's loader places the tensor nowhere. XOR: representation-preserving copies that
    overlap no other write; such a path takes XOR and DELTA16. OVERWRITE: absolute values only.
    REFUSED: cannot be refitted at all.
    """

    SKIP = "skip"
    XOR = "xor"
    OVERWRITE = "overwrite"
    REFUSED = "refused"


Classification: TypeAlias = dict[str, PathClass]
"""Canonical name (aliases included) -> path class; names that are absent count as OVERWRITE."""


class ReceiverState(StrEnum):
    """P8. EMPTY: started, holds no proven version. COMPLETE: applied and checked, not yet settled."""

    EMPTY = "empty"
    CLEAN = "clean"
    MIXED = "mixed"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class ReceiverReport:
    """State of one receiver instance. ``version`` is v of clean(v) and mixed(v), else -1.

    ``opened`` is the last attempt it opened since it was last clean. ``pause_s``: for how many seconds its
    gate was shut the last time, None while it is shut or if it has not been.
    """

    receiver: str
    incarnation: str
    state: ReceiverState
    version: int
    fenced: AttemptId | None
    opened: AttemptId | None
    classification: Classification
    pause_s: float | None = None


@dataclass(frozen=True, slots=True)
class StagedAck:
    """Every payload of the manifest is held in host memory or on disk; no storage was touched (R19).

    ``num_reused`` of ``num_payloads`` came with earlier attempts (P6); ``spilled_bytes`` of ``num_bytes``
    lie on disk.
    """

    receiver: str
    attempt: AttemptId
    manifest: str
    num_payloads: int
    num_reused: int
    num_bytes: int
    spilled_bytes: int


@dataclass(frozen=True, slots=True)
class ReceiverAudit:
    """Digests of the resident bits of one instance that is clean(v) (B6).

    ``attempt`` is the one that made v, ``catalogue`` the digest that tells runs apart. ``table`` lacks
    the names that the loader places nowhere or not completely.
    """

    receiver: str
    incarnation: str
    catalogue: str
    version: int
    attempt: AttemptId
    table: AuditTable


@dataclass(frozen=True, slots=True)
class ApplyAck:
    """Every expected payload is applied, synchronized and checked.

    Figures of the attempt: ``num_items``, ``num_values`` written, ``num_skipped`` items and
    ``num_payloads``; ``apply_s`` and ``check_s`` are seconds.
    """

    receiver: str
    attempt: AttemptId
    manifest: str
    num_payloads: int
    num_items: int
    num_skipped: int
    num_values: int
    apply_s: float
    check_s: float


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """Permission to serve for ``seconds`` from the moment at which the request for it was sent (P11)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class OwnerReport:
    """What an owner holds (P10). ``step`` is that of its candidate, None without one.

    ``baseline_version`` is the version of its trackers; ``close`` its last closed list, if any.
    """

    owner: int
    incarnation: str
    baseline_version: int
    fenced: AttemptId | None
    step: int | None
    counters: str
    close: OwnerClose | None
