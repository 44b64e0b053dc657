"""The one value that decides (paper section 6.3, DESIGN P3-P5): the commit record and the active attempt."""

from dataclasses import dataclass

from dcr.model.ids import AttemptId, CandidateId, RunId


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """K^v: binds the published policy version to the source baseline that made it.

    ``manifest`` and ``audit`` are digests of immutable objects; ``writer`` is the nonce of the
    write, so equal content is still distinguishable; ``step`` is the training step whose weights
    these are, which is not the version (P2, P13).
    """

    run: RunId
    version: int
    attempt: AttemptId
    epoch: int
    writer: str
    parent: AttemptId | None
    step: int
    catalogue: str
    manifest: str
    audit: str
    wire_format: int = 1


@dataclass(frozen=True, slots=True)
class ActiveAttempt:
    """The attempt that endpoints obey, and the durable facts of its transition (P4, P5, P6).

    ``opened`` is set before the first open_apply of the transition and stays set through its
    retries: from then on only overwrites are sent. ``since`` is the number of the first attempt of the
    unbroken chain of attempts at this candidate: what opened one of these was clean before.
    """

    attempt: AttemptId
    candidate: CandidateId
    opened: bool
    since: int


@dataclass(frozen=True, slots=True)
class ControlState:
    """The compare-and-set value of a run. Every write raises ``revision`` and names its ``writer``.

    ``number`` is the last attempt number handed out; ``epoch`` rises when a coordinator takes over.
    ``members`` are, sorted, all receivers that may hold a serving lease; a commit needs every one (P11).
    """

    run: RunId
    revision: int
    writer: str
    epoch: int
    number: int
    record: CommitRecord
    active: ActiveAttempt | None = None
    members: tuple[str, ...] = ()
