"""One trainer rank's side of a refit: compares, publishes, folds in (paper section 5, DESIGN P5-P9).

Endpoint methods are called from server threads; ``present``, ``withdraw`` and ``wait_committed``
belong to the trainer. It implements the coordinator's owner endpoint structurally.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dcr import observe
from dcr.config import CodecConfig
from dcr.errors import AttemptFailed, ConfigError, Conflict, IntegrityError, Unreachable
from dcr.model import (
    GENESIS,
    AttemptId,
    Bits,
    Catalogue,
    Classification,
    CommitRecord,
    OwnerClose,
    OwnerReport,
)
from dcr.source.baseline import Baseline
from dcr.source.candidate import Candidate, warn_if_touched
from dcr.source.construct import refuse_unsupported
from dcr.source.convert import Converter
from dcr.source.digests import partials
from dcr.source.ownership import owned
from dcr.source.pipeline import CheckLive, num_threads
from dcr.source.ports import ShardSource
from dcr.source.publish import Lane, Work, close_list, publish_payloads
from dcr.source.representation import FirstAttempt, Representation, Retry
from dcr.source.turn import Turn
from dcr.transport.base import Archive, Outlet, Transport
from dcr.transport.replay import replay_tensors


@dataclass(frozen=True, slots=True)
class OwnerSetup:
    """What an owner works with; ``deadline_s`` bounds its waits for a candidate and for running work."""

    catalogue: Catalogue
    archive: Archive
    transport: Transport
    baseline: Baseline
    codec: CodecConfig
    incarnation: str
    deadline_s: float = 300.0


@dataclass(frozen=True, slots=True)
class _Request:
    """What ``construct`` was asked for."""

    attempt: AttemptId
    record: CommitRecord
    overwrite_only: bool
    classification: Classification
    dense: bool
    since: int | None


class OwnerAgent:
    """Thread-safe. Its life: ``anchor`` once per run, then per transition present .. wait_committed."""

    def __init__(self, rank: int, source: ShardSource, setup: OwnerSetup) -> None:
        """Check that source, catalogue and baseline describe the same shards.

        Raises:
            ConfigError: they do not.
        """
        _require_agreement(rank, source, setup)
        self._rank = rank
        self._source = source
        self._setup = setup
        self._baseline = setup.baseline
        specs = setup.catalogue.by_name()
        self._converter = Converter(
            source, setup.baseline, specs, setup.catalogue.audit_key, setup.codec.dense_share
        )
        self._lane = _lane(rank, setup)
        self._changed = threading.Condition()
        self._turn = Turn(self._changed, setup.deadline_s)
        self._acknowledged: AttemptId | None = None
        self._candidate: Candidate | None = None
        self._presentations = 0
        self._folded: CommitRecord | None = None
        self._told: CommitRecord | None = None
        self._anchor: OwnerClose | None = None
        self._last_close: OwnerClose | None = None

    # ---- trainer side ----

    def present(self, step: int) -> None:
        """Offer the weights of ``step``; they must not be written until ``wait_committed`` returns.

        Raises:
            Conflict: another step is still offered.
        """
        counters = self._source.counters()
        with self._changed:
            if self._candidate is not None and self._candidate.step != step:
                raise Conflict(
                    f"step {self._candidate.step} is still presented; wait_committed or withdraw it first"
                )
            if self._candidate is None:
                self._presentations += 1
                self._candidate = Candidate(step, counters, self._presentations)
                self._folded = None
            self._changed.notify_all()

    def withdraw(self) -> None:
        """Take the candidate back and return when nothing reads it any more.

        Raises:
            AttemptFailed: running work did not end within the deadline.
        """
        with self._changed:
            self._candidate = None
            self._turn.cancel(lambda _: True)
            self._changed.notify_all()
            self._turn.wait_idle()

    def wait_committed(self, step: int, *, timeout_s: float) -> CommitRecord:
        """Return the record that committed the presented ``step``, once it is folded in.

        Raises:
            AttemptFailed: the step was withdrawn or never presented.
            Unreachable: it was not committed in time; the candidate stays presented.
        """
        with self._changed:
            ended = self._changed.wait_for(
                lambda: self._candidate is None or self._candidate.step != step, timeout_s
            )
            if not ended:
                raise Unreachable(f"step {step} was not committed within {timeout_s} s")
            if self._folded is None or self._folded.step != step:
                raise AttemptFailed(f"step {step} is not presented on rank {self._rank}")
            return self._folded

    def wait_told(self, *, timeout_s: float) -> CommitRecord:
        """Return what a coordinator has told this rank to be committed, once its trackers hold it (P1).

        Raises:
            Unreachable: none did in time.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._told is not None, timeout_s) or self._told is None:
                raise Unreachable(f"rank {self._rank} was not told within {timeout_s} s what is committed")
            return self._told

    # ---- endpoint ----

    def collect(self, step: int | None) -> OwnerReport:
        """Report; with ``step``, wait until it is presented or was just folded in.

        Raises:
            Unreachable: it was not presented within the deadline.
        """
        with self._changed:
            known = self._changed.wait_for(lambda: self._knows(step), self._setup.deadline_s)
            if not known:
                raise Unreachable(f"rank {self._rank} did not present step {step} in time")
            return self._report()

    def anchor(self) -> OwnerClose:
        """Publish the v0 baseline as absolute values under GENESIS and close the list (P2). Idempotent.

        Raises:
            Conflict: the baseline is not at version 0.
        """
        with self._turn.hold(GENESIS) as check:
            if self._baseline.version != 0:
                raise Conflict(f"the baseline is at version {self._baseline.version}; only v0 is an anchor")
            if self._anchor is None:
                work = Work(GENESIS, -1, self._baseline.tasks, self._converter.anchor, check)
                self._anchor = publish_payloads(work, self._lane)
            return self._close(self._anchor)

    def publish_planes(self, record: CommitRecord, outlet: Outlet) -> OwnerClose:
        """Publish the trackers of ``record``'s version, whole, through ``outlet``, and close the list (P14).

        For the trainer, between two transitions: a tracker is never read while it is folded in. Idempotent.

        Raises:
            IntegrityError: the trackers are at another version.
            AttemptFailed: a later attempt has begun, or other work did not end within the deadline.
            Conflict: the outlet holds another version's bits under these names.
            StoreError: the store failed; call again.
        """
        lane = replace(self._lane, transport=outlet)
        with self._turn.hold(record.attempt) as check:
            _require_version(self._baseline, record)
            work = Work(record.attempt, -1, self._baseline.tasks, self._converter.anchor, check)
            with observe.span("owner.planes", owner=self._rank, version=record.version):
                close = publish_payloads(work, lane)
        outlet.close(close)
        return close

    def fence(self, attempt: AttemptId, record: CommitRecord) -> OwnerReport:
        """End earlier attempts, bring the trackers to ``record`` and obey ``attempt`` (P6, P9).

        Raises:
            Conflict: a later attempt is obeyed, or ``record`` is older than the trackers.
            IntegrityError: the trackers can neither be proven nor rebuilt.
        """
        before = self._turn.obey(attempt)
        with self._changed:
            if self._acknowledged == attempt:
                return self._report()
        if before is not None and before != attempt:
            self._setup.transport.stop_and_wait(before)
        with self._turn.hold(attempt) as check:
            self._turn.obey(attempt)
            self._catch_up(record, check)
            with self._changed:
                self._acknowledged = attempt
        return self.collect(None)

    def construct(
        self,
        attempt: AttemptId,
        record: CommitRecord,
        overwrite_only: bool,
        classification: Classification,
        dense: bool = False,
        since: int | None = None,
    ) -> OwnerClose:
        """Compare, publish and close; the same close again if that was done already.

        ``dense``: every owned shard goes whole, as absolute values, changed or not (P12). ``since``: payloads
        that attempts from that number on have stored are named, not sent again (P6).

        Raises:
            Conflict: ``attempt`` was replaced.
            AttemptFailed: there is no candidate, or the attempt was stopped or never fenced.
            UnsupportedPath: a receiver refuses one of the tensors; nothing was published.
            IntegrityError: trackers are not at ``record.version``, or weights were written (P5).
        """
        request = _Request(attempt, record, overwrite_only, classification, dense, since)
        self._turn.require_live(attempt)
        with self._turn.hold(attempt) as check:
            self._turn.require_live(attempt)
            candidate = self._candidate
            if candidate is None:
                raise AttemptFailed(f"rank {self._rank} presents no candidate")
            if attempt not in candidate.closes:
                candidate.closes[attempt] = self._construct(candidate, request, check)
                check()
            return self._close(candidate.closes[attempt])

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """Stop ``attempt``; at once if it was replaced, else when nothing of it can still happen."""
        if self._turn.stop(attempt):
            self._setup.transport.stop_and_wait(attempt)
            self._turn.wait_idle()

    def fold_in(self, attempt: AttemptId, record: CommitRecord) -> OwnerReport:
        """Bring the trackers to ``record`` and release the candidate, if it is of this version. Idempotent.

        Raises:
            Conflict: ``record`` does not name ``attempt``.
            IntegrityError: the candidate's bits are not those that were committed.
            StoreError: the disk is full; call again.
        """
        if record.attempt != attempt:
            raise Conflict(f"the record names attempt {record.attempt}, not {attempt}: it was not committed")
        if record.version > self._baseline.version:  # else there is nothing to wait for
            with self._turn.hold(attempt) as check:
                if record.version > self._baseline.version:
                    self._catch_up(record, check)
        with self._changed:
            if self._told is None or record.version > self._told.version:
                self._told = record
                self._changed.notify_all()
        return self.collect(None)

    # ---- inside ----

    def _knows(self, step: int | None) -> bool:
        presented = self._candidate is not None and self._candidate.step == step
        folded = self._folded is not None and self._folded.step == step
        return step is None or presented or folded

    def _report(self) -> OwnerReport:
        candidate = self._candidate
        return OwnerReport(
            owner=self._rank,
            incarnation=self._setup.incarnation,
            baseline_version=self._baseline.version,
            fenced=self._turn.fenced,
            step=candidate.step if candidate else None,
            counters=candidate.identity if candidate else "",
            close=self._last_close,
        )

    def _construct(self, candidate: Candidate, request: _Request, check: CheckLive) -> OwnerClose:
        _require_version(self._baseline, request.record)
        refuse_unsupported(self._baseline.tasks, request.classification)
        warn_if_touched(candidate, self._source.counters())
        representation = self._representation(request)
        convert = self._converter.changes(
            candidate, representation, request.classification, dense=request.dense
        )
        work = self._reusing(
            candidate,
            request,
            Work(request.attempt, request.record.version, self._baseline.tasks, convert, check),
        )
        with observe.stage("owner.construct", owner=self._rank, attempt=str(request.attempt)):
            return publish_payloads(work, self._lane)

    def _reusing(self, candidate: Candidate, request: _Request, work: Work) -> Work:
        """Let ``work`` name what earlier attempts at the very same delta have stored, if it may (P6)."""
        if request.since is None or request.overwrite_only or request.dense:
            return work
        published = candidate.publications(request.record.attempt, request.classification)
        known = dict(published.since(request.since))
        return replace(work, known=known, note=lambda ref: published.note(request.attempt, ref))

    def _representation(self, request: _Request) -> Representation:
        return (
            Retry()
            if request.overwrite_only or request.dense
            else FirstAttempt(request.classification, self._lane.codec.name)
        )

    def _close(self, close: OwnerClose) -> OwnerClose:
        close_list(close, self._lane)
        with self._changed:
            self._last_close = close
        return close

    def _catch_up(self, record: CommitRecord, check: CheckLive) -> None:
        """Fold in what this owner itself published under the record's attempt, else rebuild.

        ``check`` is asked between the payloads of the archive.
        """
        if record.catalogue != self._lane.catalogue:
            raise ConfigError(
                f"the run's catalogue is {record.catalogue}, this trainer's {self._lane.catalogue}: another "
                "model, dtype or name set needs a new run (P15)"
            )
        if record.version < self._baseline.version:
            raise Conflict(f"the trackers are at {self._baseline.version}, past record {record.version}")
        candidate = self._candidate
        if candidate and record.attempt in candidate.closes and self._baseline.follows(record.version):
            self._fold(candidate, record)
        else:
            self._baseline.bring_to(record.version, lambda names: self._replay(record, names, check))

    def _fold(self, candidate: Candidate, record: CommitRecord) -> None:
        baseline = self._baseline
        with observe.span("owner.fold_in", attempt=str(record.attempt), version=record.version):
            threads = num_threads(self._setup.codec)
            changes = self._converter.fold_changes(record.version, threads=threads)
            baseline.fold_in(record.version, candidate.digests, changes)
            require_committed_bits(candidate.closes[record.attempt], baseline)
        with self._changed:
            self._candidate, self._folded = None, record
            self._changed.notify_all()

    def _replay(self, record: CommitRecord, names: Sequence[str], look: CheckLive) -> Mapping[str, Bits]:
        return replay_tensors(self._setup.archive, record, self._setup.catalogue, names, look=look)


def require_committed_bits(close: OwnerClose, baseline: Baseline) -> None:
    """Compare the trackers' partial digests with those of the closed list that was committed (P5).

    Raises:
        IntegrityError: they differ.
    """
    held = partials(baseline.tasks, {task.key: baseline.digests(task) for task in baseline.tasks})
    if wrong := sorted(name for name in held if close.audit.get(name) != held[name]):
        raise IntegrityError(f"the trackers do not hold what attempt {close.attempt} committed: {wrong}")


def _require_version(baseline: Baseline, record: CommitRecord) -> None:
    if baseline.version != record.version or baseline.stale(record.version):
        raise IntegrityError(
            f"the trackers are at version {baseline.version}, the record at {record.version}; detection "
            "against another version would lose changes: fence this owner with the record first"
        )


def _lane(rank: int, setup: OwnerSetup) -> Lane:
    catalogue = setup.catalogue
    empty = tuple(sorted(name for name, spec in catalogue.by_name().items() if not spec.num_elements))
    return Lane(rank, catalogue.run, catalogue.digest(), empty, setup.codec, setup.transport)


def _require_agreement(rank: int, source: ShardSource, setup: OwnerSetup) -> None:
    if source.tensors() != setup.catalogue.tensors:
        raise ConfigError(f"the trainer's tensors on rank {rank} are not those of the run's catalogue (P15)")
    if setup.baseline.tasks != owned(source.tasks(), rank):
        raise ConfigError(f"the baseline of rank {rank} is not made of owned(source.tasks(), {rank})")
