"""What every script of one coordinator knows: its run, its epoch and the fixed cast of parties."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic

from dcr.commit.book import MembershipBook
from dcr.config import CommitConfig
from dcr.model import ApplyAck, Catalogue, CommitRecord, Manifest, RunId


@dataclass(frozen=True, slots=True)
class Roster:
    """Targets of the run: ``owners`` in trainer-rank order, ``receivers`` that are members at its start."""

    owners: tuple[str, ...]
    receivers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Context:
    """``owners`` are targets in trainer-rank order; a new run begins with ``receivers`` as its members (P11).

    ``epoch`` is the coordinator's claim on the run: every write of it is refused once another
    took over. ``nonce`` gives a fresh identity for each write, ``clock`` monotonic seconds for leases
    and stragglers. Each epoch has a ``book`` of its own.
    """

    run: RunId
    epoch: int
    owners: tuple[str, ...]
    receivers: tuple[str, ...]
    catalogue: Catalogue
    config: CommitConfig
    nonce: Callable[[], str]
    clock: Callable[[], float] = monotonic
    book: MembershipBook = field(default_factory=MembershipBook)


@dataclass(frozen=True, slots=True)
class Request:
    """Publish the candidate of training step ``step`` as the version after ``parent_version``.

    ``requester`` is the incarnation of trainer rank 0 that asks: once another one answers under
    its name, nobody waits for this request any more. Empty: not known.
    """

    step: int
    parent_version: int
    requester: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transition ended. ``acks`` is empty if an earlier coordinator or request committed it.

    ``pauses``: seconds that each receiver's gate was shut, by name, as far as they told.
    """

    record: CommitRecord
    acks: tuple[ApplyAck, ...]
    num_attempts: int
    pauses: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rollback:
    """How a rollback to ``record`` ended: ``serving`` serve its version, ``failed`` (name -> why) do not."""

    record: CommitRecord
    serving: tuple[str, ...]
    failed: dict[str, str]


@dataclass(frozen=True, slots=True)
class TransitionReport:
    """An ``Outcome`` with the committed manifest, for callers outside the commit layer."""

    record: CommitRecord
    manifest: Manifest
    acks: tuple[ApplyAck, ...]
    num_attempts: int
    pauses: dict[str, float] = field(default_factory=dict)
