"""One runtime instance as the coordinator sees it (paper section 6.3, Appendix B, DESIGN P6-P8, P15, P16).

Structurally a ``dcr.commit.endpoints.ReceiverEndpoint``. Control calls may come in any order, twice
or late, from several threads; ``pump`` runs in a thread of its own. One lock guards all state and
every write. A fence first raises the obeyed attempt, which makes a running pump stop between two items,
and then waits for the lock: when it answers, no write of an earlier attempt can still take effect.
"""

import threading

from dcr import observe
from dcr.codec import Limits
from dcr.errors import AttemptFailed, ConfigError, Conflict
from dcr.model import (
    ApplyAck,
    AttemptId,
    Catalogue,
    CommitRecord,
    Manifest,
    ReceiverAudit,
    ReceiverDiagnosis,
    ReceiverReport,
    ReceiverState,
    StagedAck,
    from_json,
)
from dcr.receiver import rules
from dcr.receiver.area import Room, StagingArea
from dcr.receiver.catch_up import CatchUpPolicy
from dcr.receiver.examine import Examiner
from dcr.receiver.fences import Fences
from dcr.receiver.holding import Holding
from dcr.receiver.ports import RequestGate
from dcr.receiver.proof import DecayedBase, Prover
from dcr.receiver.session import Session
from dcr.receiver.stager import StagedSource, Stager
from dcr.receiver.writer import Writer
from dcr.transport.base import Archive, Transport


class ReceiverAgent:
    """Holds the state of P8 for one instance; starts EMPTY with the gate closed. Thread-safe."""

    def __init__(  # noqa: PLR0913 -- one collaborator each, all fixed for life
        self,
        name: str,
        applier: Writer,
        gate: RequestGate,
        *,
        transport: Transport,
        archive: Archive,
        catalogue: Catalogue,
        incarnation: str,
        check: str = "written",
        slice_bytes: int = 16 << 20,
        room: Room | None = None,
        catch_up: CatchUpPolicy | None = CatchUpPolicy(),  # noqa: B008 -- frozen
    ) -> None:
        """Prewarm, unless ``applier`` has been. ``check`` is that of ``dcr.config.RefitConfig``.

        ``slice_bytes``: how much a step of the background audit reads at once. ``room`` is for payloads that
        wait for the gate to shut; by default that of ``Room``, none of it on disk. ``catch_up`` None:
        every restore is a dense load.

        Raises:
            UnsupportedPath: the loader cannot take deltas.
        """
        self.name = name
        self._incarnation = incarnation
        self._applier = applier
        self._gate = gate
        self._transport = transport
        self._archive = archive
        self._run = catalogue.run
        self._catalogue = catalogue
        self._catalogue_digest = catalogue.digest()
        self._limits = Limits.of_catalogue(catalogue)
        self._prover = Prover(applier, archive, catalogue, check, catch_up)
        self._fences = Fences()
        self._held = Holding(name, applier, self._prover, gate)
        self._stager = Stager(name, StagingArea(room or Room()), transport, archive)
        self._ack: ApplyAck | None = None
        self._examiner = Examiner(
            name, self._held, self._report, applier, self._prover, slice_bytes=slice_bytes
        )

    @property
    def lost(self) -> threading.Event:
        """Set while this instance has taken itself out; whoever runs it asks to be admitted again."""
        return self._held.lost

    @property
    def incarnation(self) -> str:
        """Which process of this name it is."""
        return self._incarnation

    @property
    def base(self) -> AttemptId | None:
        """What committed the version that is held, or that writes started from; None while EMPTY. No wait."""
        return self._held.standing.base

    def fence(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        """Stop every earlier attempt; return when none of its writes can take effect (P6).

        Asked again for the same attempt it only reports: a late copy of the call, with the record of
        its time, must not judge what the attempt has done since.

        Raises:
            Conflict: a later attempt is obeyed already.
            ConfigError: ``record`` is of another run or catalogue.
        """
        self._check_record(record)
        self._fences.obey(attempt)
        self._stop_session_before(attempt)
        with self._held.lock:
            self._fences.check_not_replaced(attempt)
            if self._fences.fenced == attempt:
                return self._report()
            self._stop_session_before(attempt)
            self._fences.fenced = attempt
            self._held.stand(rules.after_fence(self._held.standing, record), record)
            self._held.notice_rebuilt()
            return self._report()

    def restore(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        """Bring storage to ``record``'s version, from the archive, and prove it; the gate stays as it was.

        Nothing is done if this receiver holds exactly that version already; see ``Prover.restore``.

        Raises:
            Conflict: ``attempt`` is not the fenced one or was acknowledged here, or a later version is clean.
            IntegrityError: the version cannot be rebuilt or proven.
            AttemptFailed: replaced meanwhile, or the loader failed; storage is empty.
        """
        self._check_record(record)
        with self._held.lock:
            self._fences.check_current(attempt)
            if self._held.standing == rules.clean(record):
                return self._report()
            rules.check_not_acknowledged(self._held.standing, attempt, record)
            observe.point("receiver.restore.before", version=record.version)
            self._held.stand(rules.EMPTY)
            self._held.changed = True
            self._held.classification = self._prover.restore(
                record, lambda: self._fences.is_cancelled(attempt)
            )
            self._held.stand(rules.clean(record), record)
            observe.point("receiver.restore.after", version=record.version)
            return self._report()

    def stage(self, attempt: AttemptId, record: CommitRecord, since: int) -> None:
        """Begin to hold ``attempt``'s payloads while this version is served; idempotent.

        Raises:
            Conflict: ``attempt`` is not the fenced one.
            AttemptFailed: storage is not clean at ``record``, or the attempt was stopped.
        """
        self._check_record(record)
        with self._held.lock:
            self._fences.check_current(attempt)
            self._fences.check_not_stopped(attempt)
            rules.check_may_stage(self._held.standing, record)
            self._stager.begin(attempt, record, since)

    def staged(self, attempt: AttemptId, manifest: str) -> StagedAck:
        """Return when exactly the payloads of the manifest with that digest are held; idempotent.

        Raises:
            Conflict: ``attempt`` is not the fenced one.
            AttemptFailed: it was stopped, a payload is missing, damaged or has no room, or this receiver has
                taken itself out meanwhile.
            StoreError: the store failed for now.
        """
        self._fences.check_current(attempt)
        self._fences.check_not_stopped(attempt)
        ack = self._stager.complete(attempt, manifest, lambda: self._fences.is_cancelled(attempt))
        with self._held.lock:
            rules.check_not_lost(self._held.standing)
        return ack

    def open_apply(self, attempt: AttemptId, record: CommitRecord, manifest: str | None = None) -> None:
        """Close the gate, then count storage as torn and begin to take ``attempt``'s payloads; idempotent.

        With ``manifest`` they are those of the closed manifest with that digest, which are held already.

        Raises:
            Conflict: ``attempt`` is not the fenced one.
            AttemptFailed: storage does not stand on ``record``, the attempt was stopped, or something that
                ``manifest`` names is not held.
        """
        self._check_record(record)
        with self._held.lock:
            self._fences.check_current(attempt)
            if self._held.session is not None and self._held.session.attempt == attempt:
                return
            self._fences.check_not_stopped(attempt)
            self._held.refuse_rebuilt()
            before = self._held.standing
            torn = rules.after_open(before, attempt, record)
            observe.point("receiver.open_apply.before", attempt=str(attempt))
            listed = None if manifest is None else self._stager.manifest(record, attempt, manifest)
            source = self._open_staged(listed)
            self._held.shut_gate()
            self._fences.check_current(attempt)  # requests in flight may have taken longer than it lived
            self._fences.check_not_stopped(attempt)
            self._held.standing, self._ack = torn, None
            self._held.session = Session(
                self._applier,
                attempt,
                record,
                xor_allowed=rules.may_xor(before),
                limits=self._limits,
                cancelled=lambda: self._fences.is_cancelled(attempt),
                source=source,
            )
            observe.point("receiver.open_apply.after", attempt=str(attempt))

    def pump(self) -> int:
        """Hold or apply what is visible of the attempt; returns how many payloads. For a background thread.

        Failures to apply are kept for ``finish``, those to hold for ``staged``.

        Raises:
            RefitError: fetching failed; nothing is lost, call again.
        """
        staging = self._stager.attempt
        if staging is not None and not self._fences.is_cancelled(staging):
            return self._stager.pull()
        with self._held.lock:
            session = self._held.session
            if session is None or self._held.standing.state is not ReceiverState.MIXED:
                return 0
            if self._fences.is_cancelled(session.attempt):
                return 0
            return self._pump(session)

    def finish(self, attempt: AttemptId, manifest: str) -> ApplyAck:
        """Apply, synchronize and check exactly the payloads of the manifest with that digest; idempotent.

        Raises:
            Conflict: ``attempt`` is not the fenced one.
            AttemptFailed: not open, a payload is missing, extra or other, a write or a check failed.
        """
        with self._held.lock:
            self._fences.check_current(attempt)
            if self._ack is not None and (self._ack.attempt, self._ack.manifest) == (attempt, manifest):
                return self._ack
            session = self._held.session
            if (
                session is None
                or session.attempt != attempt
                or self._held.standing.state is not ReceiverState.MIXED
            ):
                raise AttemptFailed(f"attempt {attempt} is not open here ({self._held.standing.state.value})")
            self._fences.check_not_stopped(attempt)
            observe.point("receiver.finish.before", attempt=str(attempt))
            self._complete(session, manifest)
            observe.point("receiver.finish.after", attempt=str(attempt))
            assert self._ack is not None
            return self._ack

    def settle(self, record: CommitRecord) -> ReceiverReport:
        """End the transition: what ``record`` names becomes clean and the gate opens; idempotent.

        Raises:
            Conflict: the record does not name what this receiver holds; the gate stays as it is.
        """
        self._check_record(record)
        with self._held.lock:
            settled = rules.after_settle(self._held.standing, record)
            observe.point("receiver.settle.before", version=record.version)
            self._held.stand(settled, record)
            staging = self._stager.attempt
            if staging is None or self._fences.is_cancelled(staging):  # else this call is a late copy
                self._stager.end()
            self._held.open_gate()
            observe.point("receiver.settle.after", version=record.version)
            return self._report()

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """End ``attempt`` here for good; returns when no write of it can take effect. The gate stays shut."""
        if not self._fences.stop(attempt):
            return
        self._transport.stop_and_wait(attempt)
        with self._held.lock:
            pass  # a write that was under way has ended

    def report(self) -> ReceiverReport:
        """What this instance holds now."""
        with self._held.lock:
            return self._report()

    def audit(self) -> ReceiverAudit:
        """Digest every resident tensor (B6). Reads only, but calls that write wait for it.

        Raises:
            AttemptFailed: this instance is not clean; ask again when the transition has ended.
            IntegrityError: two resident copies of one tensor differ.
        """
        with self._held.clean() as record:
            if record is None:
                raise AttemptFailed(
                    f"{self.name} is {self._held.standing.state.value}: only a clean version is audited"
                )
            return ReceiverAudit(
                self.name,
                self._incarnation,
                self._catalogue_digest,
                record.version,
                record.attempt,
                self._applier.audit(),
            )

    def examine(self) -> int:
        """Background audit, one slice: see ``Examiner.step``. One thread calls it."""
        return self._examiner.step()

    def diagnose(self) -> ReceiverDiagnosis:
        """State, choices of every rank, and audit, for people."""
        return self._examiner.diagnose()

    def _report(self) -> ReceiverReport:
        standing = self._held.standing
        known = standing.state in (ReceiverState.CLEAN, ReceiverState.MIXED)
        return ReceiverReport(
            receiver=self.name,
            incarnation=self._incarnation,
            state=standing.state,
            version=standing.version if known else -1,
            fenced=self._fences.fenced,
            opened=standing.opened,
            classification=self._held.classification,
            pause_s=self._held.pause_s,
        )

    def _open_staged(self, manifest: Manifest | None) -> StagedSource | None:
        """What ``manifest`` names of the staged payloads; everything else is discarded (P6)."""
        if manifest is None:
            self._stager.end()
            return None
        return self._stager.open(manifest)

    def _check_record(self, record: CommitRecord) -> None:
        if (record.run, record.catalogue) != (self._run, self._catalogue_digest):
            raise ConfigError(
                f"the record is of run {record.run} with catalogue {record.catalogue}, this receiver serves "
                f"{self._run} with {self._catalogue_digest}; a changed name, shape or dtype needs a new run"
            )

    def _stop_session_before(self, attempt: AttemptId) -> None:
        session = self._held.session
        for earlier in (self._stager.attempt, None if session is None else session.attempt):
            if earlier is not None and earlier < attempt:
                self._transport.stop_and_wait(earlier)

    def _pump(self, session: Session) -> int:
        try:
            return session.pump(self._transport)
        finally:
            self._held.changed = self._held.changed or session.wrote

    def _complete(self, session: Session, digest: str) -> None:
        manifest = from_json(Manifest, self._archive.get_object("manifest", digest))
        rules.check_manifest(manifest, session.attempt, session.record, xor_allowed=session.xor_allowed)
        session.require_success()
        while (reason := session.mismatch(manifest)) and self._pump(session):
            session.require_success()
        session.require_success()
        if reason:
            if session.holds_unlisted(manifest):
                self._held.stand(rules.EMPTY)
            raise AttemptFailed(
                f"attempt {session.attempt}: payloads are not those of the manifest: {reason}"
            )
        try:
            check_s = self._prover.after_apply(manifest, was_torn=not session.xor_allowed)
        except DecayedBase as err:
            self._held.stand(rules.EMPTY)
            raise AttemptFailed(f"{self.name}: {err}") from err
        if self._fences.is_cancelled(session.attempt):
            raise Conflict(f"attempt {session.attempt} was replaced while it was checked")
        self._held.standing = rules.completed(self._held.standing)
        self._ack = session.acknowledge(self.name, digest, check_s)
