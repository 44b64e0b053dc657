"""The coordinator's view of owners and receivers: calls and answers, never tensors.

Every call carries the attempt; an endpoint that has been fenced for a later one answers
Conflict and does nothing (P6). All calls are idempotent: a lost answer is asked for again.
"""

from typing import Protocol

from dcr.model import (
    ApplyAck,
    AttemptId,
    Classification,
    CommitRecord,
    OwnerClose,
    OwnerReport,
    ReceiverReport,
    StagedAck,
)


class OwnerEndpoint(Protocol):
    """One trainer rank."""

    def collect(self, step: int | None) -> OwnerReport:
        """Report what this rank holds; with ``step``, wait until a candidate of that step is presented."""
        ...

    def anchor(self) -> OwnerClose:
        """Publish the baseline at v0 as absolute values under GENESIS and close the list (P2)."""
        ...

    def fence(self, attempt: AttemptId, record: CommitRecord) -> OwnerReport:
        """Stop every earlier attempt, return when none of its writes can take effect, obey ``attempt``."""
        ...

    def construct(
        self,
        attempt: AttemptId,
        record: CommitRecord,
        overwrite_only: bool,
        classification: Classification,
        dense: bool = False,
        since: int | None = None,
    ) -> OwnerClose:
        """Find the changes against baseline v = record.version, publish them, close the list.

        ``dense``: publish every owned shard whole, as absolute values, changed or not (P12). ``since``: what
        attempts from that number on have published need not be sent again, but may be named (P6).

        Raises:
            AttemptFailed: no candidate, or a stopped attempt.
            Conflict: a replaced attempt.
            IntegrityError: a retry rebuilt other bits: weights were written meanwhile (P5).
        """
        ...

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """Stop ``attempt``; return at once if it was replaced, else when nothing of it can still happen."""
        ...

    def fold_in(self, attempt: AttemptId, record: CommitRecord) -> OwnerReport:
        """Bring the trackers to ``record`` (which names ``attempt``), durably and in place (P9)."""
        ...


class ReceiverEndpoint(Protocol):
    """One runtime instance (all its ranks)."""

    def fence(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        """As for owners; ``record`` settles complete(tau) into clean(v+1) or mixed(v) (P8)."""
        ...

    def restore(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        """Load the committed version from the archive through the native loader and prove it by audit."""
        ...

    def stage(self, attempt: AttemptId, record: CommitRecord, since: int) -> None:
        """Hold ``attempt``'s payloads as they arrive, while v = record.version is served (R19).

        Payloads of attempts before number ``since`` are of other candidates: they are dropped.

        Raises:
            AttemptFailed: the instance is not clean(v), or the attempt was stopped.
        """
        ...

    def staged(self, attempt: AttemptId, manifest: str) -> StagedAck:
        """Return when exactly the payloads of the manifest with that digest are held. Touches no storage.

        Raises:
            AttemptFailed: a payload is missing, damaged or other, or there is no room for it.
        """
        ...

    def open_apply(self, attempt: AttemptId, record: CommitRecord, manifest: str | None = None) -> None:
        """Close the gate and start to apply ``attempt``'s payloads onto v = record.version.

        With ``manifest``, the digest of a closed one, these are exactly the staged payloads that it names;
        all others are discarded (P6). Else they are applied as they arrive.

        Raises:
            AttemptFailed: the instance is neither clean(v) nor mixed(v), the attempt was stopped, or not
                everything that ``manifest`` names is held.
        """
        ...

    def finish(self, attempt: AttemptId, manifest: str) -> ApplyAck:
        """Receive, apply, synchronize and check exactly the payloads of the manifest with that digest.

        Raises:
            AttemptFailed: a write broke a loader condition, a check failed, or a payload is missing.
        """
        ...

    def settle(self, record: CommitRecord) -> ReceiverReport:
        """End the transition: complete(record.attempt) becomes clean(record.version), the gate reopens."""
        ...

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """As for owners; the gate stays closed."""
        ...
