"""One runtime instance as the coordinator sees it (paper section 6.3, Appendix B, DESIGN P6-P8, P15, P16).

Structurally a ``dcr.commit.endpoints.ReceiverEndpoint``. Control calls may come in any order, twice
or late, from several threads; ``pump`` runs in a thread of its own. One lock guards all state and
every write. A fence first raises the obeyed attempt, which makes a running pump stop between two items,
and then waits for the lock: when it answers, no write of an earlier attempt can still take effect.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from dcr import observe
from dcr.codec import Limits
from dcr.errors import AttemptFailed, ConfigError, Conflict, RefitError, UnsupportedPath
from dcr.model import (
    ApplyAck,
    AttemptId,
    AuditTable,
    Catalogue,
    CommitRecord,
    Manifest,
    ReceiverAudit,
    ReceiverDiagnosis,
    ReceiverReport,
    ReceiverState,
    from_json,
)
from dcr.receiver import rules
from dcr.receiver.examine import Examiner
from dcr.receiver.fences import Fences
from dcr.receiver.ports import RequestGate
from dcr.receiver.proof import DecayedBase, Prover
from dcr.receiver.session import Session
from dcr.receiver.writer import Writer
from dcr.transport.base import Archive, Transport

_log = logging.getLogger(__name__)


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
    ) -> None:
        """Prewarm, unless ``applier`` has been. ``check`` is that of ``dcr.config.RefitConfig``.

        ``slice_bytes``: how much a step of the background audit reads at once.

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
        self.classification = applier.prewarm()
        self._prover = Prover(applier, archive, catalogue, check)
        self._lock = threading.RLock()
        self._fences = Fences()
        self._standing = rules.EMPTY
        self._record: CommitRecord | None = None
        self._session: Session | None = None
        self._ack: ApplyAck | None = None
        self._changed = True
        self.num_standings = 0
        self.lost = threading.Event()
        self.examiner = Examiner(self, applier, archive, catalogue, slice_bytes=slice_bytes)
        gate.close()

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
        with self._lock:
            self._fences.check_not_replaced(attempt)
            if self._fences.fenced == attempt:
                return self._report()
            self._stop_session_before(attempt)
            self._fences.fenced = attempt
            self._stand(rules.after_fence(self._standing, record), record)
            self._notice_rebuilt()
            return self._report()

    def restore(self, attempt: AttemptId, record: CommitRecord) -> ReceiverReport:
        """Load ``record``'s version from the archive and prove it; the gate stays as closed as it was.

        Nothing is done if this receiver holds exactly that version already.

        Raises:
            Conflict: ``attempt`` is not the fenced one.
            IntegrityError: the version cannot be rebuilt or proven.
            AttemptFailed: replaced meanwhile, or the loader failed; storage is empty.
        """
        self._check_record(record)
        with self._lock:
            self._fences.check_current(attempt)
            if self._standing == rules.clean(record):
                return self._report()
            observe.point("receiver.restore.before", version=record.version)
            self._stand(rules.EMPTY)
            self._changed = True
            self.classification = self._prover.load(record, lambda: self._fences.is_cancelled(attempt))
            self._stand(rules.clean(record), record)
            observe.point("receiver.restore.after", version=record.version)
            return self._report()

    def open_apply(self, attempt: AttemptId, record: CommitRecord) -> None:
        """Close the gate, then count storage as torn and begin to take ``attempt``'s payloads; idempotent.

        Raises:
            Conflict: ``attempt`` is not the fenced one.
            AttemptFailed: storage does not stand on ``record``, or the attempt was stopped.
        """
        self._check_record(record)
        with self._lock:
            self._fences.check_current(attempt)
            if self._session is not None and self._session.attempt == attempt:
                return
            self._fences.check_not_stopped(attempt)
            self._refuse_rebuilt()
            before = self._standing
            torn = rules.after_open(before, attempt, record)
            observe.point("receiver.open_apply.before", attempt=str(attempt))
            self._gate.close()
            self._standing, self._ack = torn, None
            self._session = Session(
                self._applier,
                attempt,
                record,
                xor_allowed=rules.may_xor(before),
                limits=self._limits,
                cancelled=lambda: self._fences.is_cancelled(attempt),
            )
            observe.point("receiver.open_apply.after", attempt=str(attempt))

    def pump(self) -> int:
        """Apply what is visible of the open attempt; returns how many payloads. For a background thread.

        Failures to apply are kept for ``finish``.

        Raises:
            RefitError: fetching failed; nothing is lost, call again.
        """
        with self._lock:
            session = self._session
            if session is None or self._standing.state is not ReceiverState.MIXED:
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
        with self._lock:
            self._fences.check_current(attempt)
            if self._ack is not None and (self._ack.attempt, self._ack.manifest) == (attempt, manifest):
                return self._ack
            session = self._session
            if (
                session is None
                or session.attempt != attempt
                or self._standing.state is not ReceiverState.MIXED
            ):
                raise AttemptFailed(f"attempt {attempt} is not open here ({self._standing.state.value})")
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
        with self._lock:
            settled = rules.after_settle(self._standing, record)
            observe.point("receiver.settle.before", version=record.version)
            self._stand(settled, record)
            self._open_gate()
            observe.point("receiver.settle.after", version=record.version)
            return self._report()

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """End ``attempt`` here for good; returns when no write of it can take effect. The gate stays shut."""
        if not self._fences.stop(attempt):
            return
        self._transport.stop_and_wait(attempt)
        with self._lock:
            pass  # a write that was under way has ended

    def report(self) -> ReceiverReport:
        """What this instance holds now."""
        with self._lock:
            return self._report()

    def audit(self) -> ReceiverAudit:
        """Digest every resident tensor (B6). Reads only, but calls that write wait for it.

        Raises:
            AttemptFailed: this instance is not clean; ask again when the transition has ended.
            IntegrityError: two resident copies of one tensor differ.
        """
        with self.holding_clean() as record:
            if record is None:
                raise AttemptFailed(
                    f"{self.name} is {self._standing.state.value}: only a clean version is audited"
                )
            return ReceiverAudit(
                self.name,
                self._incarnation,
                self._catalogue_digest,
                record.version,
                record.attempt,
                self._applier.audit(),
            )

    @contextmanager
    def holding_clean(self) -> Iterator[CommitRecord | None]:
        """Nothing is written inside the block; gives the record of the clean version, None without one.

        A storage that the runtime rebuilt meanwhile is learned and proven first.
        """
        with self._lock:
            if self._standing.state is ReceiverState.CLEAN:
                self._notice_rebuilt()
            yield self._record if self._standing.state is ReceiverState.CLEAN else None

    @contextmanager
    def holding(self) -> Iterator[ReceiverReport]:
        """Nothing is written inside the block, whatever the state."""
        with self._lock:
            yield self._report()

    def committed(self, record: CommitRecord) -> AuditTable:
        """Audit table of ``record``, from the archive. Raises StoreError."""
        return self._prover.committed(record)

    def examine(self) -> int:
        """Background audit, one slice: see ``Examiner.step``. One thread calls it."""
        return self.examiner.step()

    def diagnose(self) -> ReceiverDiagnosis:
        """State, choices of every rank, and audit, for people."""
        return self.examiner.diagnose()

    def condemn(self, reason: str) -> int:
        """Serve no more: resident bits are not the committed ones. Inside ``holding_clean``.

        ``lost`` is set: whoever runs this process asks the coordinator to be admitted again. Returns
        ``num_standings``, which tells whether anything happened since.
        """
        with self._lock:
            _log.error("%s takes itself out: %s", self.name, reason)
            observe.point("receiver.condemned", reason=reason)
            self.lost.set()
            try:
                self._stand(rules.EMPTY)
            except AttemptFailed as err:  # the gate is shut, but a request in flight would not end
                _log.error("%s: %s", self.name, err)
            return self.num_standings

    def _report(self) -> ReceiverReport:
        standing = self._standing
        known = standing.state in (ReceiverState.CLEAN, ReceiverState.MIXED)
        return ReceiverReport(
            receiver=self.name,
            incarnation=self._incarnation,
            state=standing.state,
            version=standing.version if known else -1,
            fenced=self._fences.fenced,
            opened=standing.opened,
            classification=self.classification,
        )

    def _check_record(self, record: CommitRecord) -> None:
        if (record.run, record.catalogue) != (self._run, self._catalogue_digest):
            raise ConfigError(
                f"the record is of run {record.run} with catalogue {record.catalogue}, this receiver serves "
                f"{self._run} with {self._catalogue_digest}; a changed name, shape or dtype needs a new run"
            )

    def _stop_session_before(self, attempt: AttemptId) -> None:
        session = self._session
        if session is not None and session.attempt < attempt:
            self._transport.stop_and_wait(session.attempt)

    def _notice_rebuilt(self) -> None:
        """Learn a rebuilt storage anew while it is clean; what cannot be proven counts as EMPTY (P8).

        Raises:
            UnsupportedPath: the rebuilt storage takes no deltas.
        """
        if self._standing.state is ReceiverState.EMPTY or not (why := self._applier.rebuilt()):
            return
        _log.warning("%s: the runtime rebuilt its storage (%s)", self.name, why)
        self._changed = True
        record = self._record if self._standing.state is ReceiverState.CLEAN else None
        if record is None:
            self._stand(rules.EMPTY)
            return
        try:
            self.classification = self._prover.relearn(record)
        except RefitError as err:
            self.condemn(str(err))
            if isinstance(err, UnsupportedPath):
                raise

    def _refuse_rebuilt(self) -> None:
        """Storage that was rebuilt after the fence: this attempt's classes may be wrong for it.

        Raises:
            AttemptFailed: it was; the next fence finds it learned, or empty.
        """
        announced = self.classification
        self._notice_rebuilt()
        if self.classification != announced:
            raise AttemptFailed(f"{self.name}: the runtime rebuilt its storage, whose paths now differ")

    def _stand(self, standing: rules.Standing, record: CommitRecord | None = None) -> None:
        """Take on a standing that no open attempt writes to; what is not proven is not served."""
        self._standing = standing
        self.num_standings += 1
        self._record = record if standing.state is ReceiverState.CLEAN else None
        if standing.state is not ReceiverState.MIXED:
            self._session = None
        if standing.state is ReceiverState.CLEAN:
            self.lost.clear()
        if standing.state is ReceiverState.EMPTY:
            self._gate.close()

    def _open_gate(self) -> None:
        if rules.may_open_gate(self._standing):
            self._gate.open(self._standing.version, changed=self._changed)
            self._changed = False

    def _pump(self, session: Session) -> int:
        try:
            return session.pump(self._transport)
        finally:
            self._changed = self._changed or session.wrote

    def _complete(self, session: Session, digest: str) -> None:
        manifest = from_json(Manifest, self._archive.get_object("manifest", digest))
        rules.check_manifest(manifest, session.attempt, session.record, xor_allowed=session.xor_allowed)
        session.require_success()
        while (reason := session.mismatch(manifest)) and self._pump(session):
            session.require_success()
        session.require_success()
        if reason:
            if session.holds_unlisted(manifest):
                self._stand(rules.EMPTY)
            raise AttemptFailed(
                f"attempt {session.attempt}: payloads are not those of the manifest: {reason}"
            )
        try:
            check_s = self._prover.after_apply(manifest, was_torn=not session.xor_allowed)
        except DecayedBase as err:
            self._stand(rules.EMPTY)
            raise AttemptFailed(f"{self.name}: {err}") from err
        if self._fences.is_cancelled(session.attempt):
            raise Conflict(f"attempt {session.attempt} was replaced while it was checked")
        self._standing = rules.completed(self._standing)
        self._ack = session.acknowledge(self.name, digest, check_s)
