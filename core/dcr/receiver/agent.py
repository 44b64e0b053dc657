"""One runtime instance as the coordinator sees it (paper section 6.3, Appendix B, DESIGN P6-P8, P15, P16).

Structurally a ``dcr.commit.endpoints.ReceiverEndpoint``. Control calls may come in any order, twice
or late, from several threads; ``pump`` runs in a thread of its own. One lock guards all state and
every write. A fence first raises ``_obeyed``, which makes a running pump stop between two items,
and then waits for the lock: when it answers, no write of an earlier attempt can still take effect.
"""

import threading
import time

from dcr import observe
from dcr.codec import Limits
from dcr.errors import AttemptFailed, ConfigError, Conflict, IntegrityError
from dcr.model import (
    ApplyAck,
    AttemptId,
    AuditDigest,
    Catalogue,
    CommitRecord,
    Manifest,
    ReceiverAudit,
    ReceiverReport,
    ReceiverState,
    from_json,
)
from dcr.receiver import rules
from dcr.receiver.ports import RequestGate
from dcr.receiver.session import Session, as_refit_error
from dcr.receiver.writer import Writer
from dcr.transport.base import Archive, Transport
from dcr.transport.replay import replay


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
    ) -> None:
        """Prewarm, unless ``applier`` has been. ``check`` is that of ``dcr.config.RefitConfig``.

        Raises:
            UnsupportedPath: the loader cannot take deltas.
        """
        self._name = name
        self._incarnation = incarnation
        self._check = check
        self._applier = applier
        self._gate = gate
        self._transport = transport
        self._archive = archive
        self._run = catalogue.run
        self._catalogue = catalogue
        self._catalogue_digest = catalogue.digest()
        self._limits = Limits.of_catalogue(catalogue)
        self._classification = applier.prewarm()
        self._lock = threading.RLock()
        self._fence_lock = threading.Lock()
        self._obeyed: AttemptId | None = None
        self._stopped: AttemptId | None = None
        self._fenced: AttemptId | None = None
        self._standing = rules.EMPTY
        self._session: Session | None = None
        self._ack: ApplyAck | None = None
        self._changed = True
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
        with self._fence_lock:
            rules.check_not_replaced(attempt, self._obeyed)
            self._obeyed = attempt
        self._stop_session_before(attempt)
        with self._lock:
            rules.check_not_replaced(attempt, self._obeyed)
            if self._fenced == attempt:
                return self._report()
            self._stop_session_before(attempt)
            self._fenced = attempt
            self._stand(rules.after_fence(self._standing, record))
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
            self._check_current(attempt)
            if self._standing == rules.clean(record):
                return self._report()
            observe.point("receiver.restore.before", version=record.version)
            self._stand(rules.EMPTY)
            self._changed = True
            self._load_version(attempt, record)
            self._stand(rules.clean(record))
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
            self._check_current(attempt)
            if self._session is not None and self._session.attempt == attempt:
                return
            self._check_not_stopped(attempt)
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
                cancelled=lambda: self._is_cancelled(attempt),
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
            if self._is_cancelled(session.attempt):
                return 0
            return self._pump(session)

    def finish(self, attempt: AttemptId, manifest: str) -> ApplyAck:
        """Apply, synchronize and check exactly the payloads of the manifest with that digest; idempotent.

        Raises:
            Conflict: ``attempt`` is not the fenced one.
            AttemptFailed: not open, a payload is missing, extra or other, a write or a check failed.
        """
        with self._lock:
            self._check_current(attempt)
            if self._ack is not None and (self._ack.attempt, self._ack.manifest) == (attempt, manifest):
                return self._ack
            session = self._session
            if (
                session is None
                or session.attempt != attempt
                or self._standing.state is not ReceiverState.MIXED
            ):
                raise AttemptFailed(f"attempt {attempt} is not open here ({self._standing.state.value})")
            self._check_not_stopped(attempt)
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
            self._stand(settled)
            self._open_gate()
            observe.point("receiver.settle.after", version=record.version)
            return self._report()

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """End ``attempt`` here for good; returns when no write of it can take effect. The gate stays shut."""
        with self._fence_lock:
            if self._obeyed is not None and attempt < self._obeyed:
                return
            self._stopped = attempt if self._stopped is None else max(self._stopped, attempt)
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
        with self._lock:
            standing = self._standing
            if standing.state is not ReceiverState.CLEAN or standing.base is None:
                raise AttemptFailed(
                    f"{self._name} is {standing.state.value}: only a clean version is audited"
                )
            table = self._applier.audit()
            return ReceiverAudit(
                self._name, self._incarnation, self._catalogue_digest, standing.version, standing.base, table
            )

    def _report(self) -> ReceiverReport:
        standing = self._standing
        known = standing.state in (ReceiverState.CLEAN, ReceiverState.MIXED)
        return ReceiverReport(
            receiver=self._name,
            incarnation=self._incarnation,
            state=standing.state,
            version=standing.version if known else -1,
            fenced=self._fenced,
            opened=standing.opened,
            classification=self._classification,
        )

    def _check_record(self, record: CommitRecord) -> None:
        if (record.run, record.catalogue) != (self._run, self._catalogue_digest):
            raise ConfigError(
                f"the record is of run {record.run} with catalogue {record.catalogue}, this receiver serves "
                f"{self._run} with {self._catalogue_digest}; a changed name, shape or dtype needs a new run"
            )

    def _check_current(self, attempt: AttemptId) -> None:
        rules.check_not_replaced(attempt, self._obeyed)
        rules.check_fenced(attempt, self._fenced)

    def _check_not_stopped(self, attempt: AttemptId) -> None:
        if self._stopped is not None and attempt <= self._stopped:
            raise AttemptFailed(f"attempt {attempt} was stopped here; prepare a new one")

    def _is_cancelled(self, attempt: AttemptId) -> bool:
        return self._obeyed != attempt or (self._stopped is not None and attempt <= self._stopped)

    def _stop_session_before(self, attempt: AttemptId) -> None:
        session = self._session
        if session is not None and session.attempt < attempt:
            self._transport.stop_and_wait(session.attempt)

    def _stand(self, standing: rules.Standing) -> None:
        """Take on a standing that no open attempt writes to; what is not proven is not served."""
        self._standing = standing
        if standing.state is not ReceiverState.MIXED:
            self._session = None
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
        check_s = self._synchronize_and_check(manifest, was_torn=not session.xor_allowed)
        if self._is_cancelled(session.attempt):
            raise Conflict(f"attempt {session.attempt} was replaced while it was checked")
        self._standing = rules.completed(self._standing)
        self._ack = session.acknowledge(self._name, digest, check_s)

    def _synchronize_and_check(self, manifest: Manifest, *, was_torn: bool) -> float:
        started = time.perf_counter()
        try:
            self._applier.synchronize()
            if self._check != "off":
                with observe.span("receiver.check", attempt=str(manifest.attempt)):
                    self._applier.check()
        except Exception as err:
            raise as_refit_error(err, "the check could not run") from err
        if rules.audits_whole(self._check, was_torn=was_torn):
            self._audit_whole(manifest)
        return time.perf_counter() - started

    def _audit_whole(self, manifest: Manifest) -> None:
        """A base that decayed cannot be repaired by the delta: such a receiver starts from nothing."""
        try:
            with observe.span("receiver.audit", attempt=str(manifest.attempt)):
                rules.check_whole(self._applier.audit(), manifest)
        except (AttemptFailed, IntegrityError) as err:
            self._stand(rules.EMPTY)
            raise AttemptFailed(f"{self._name}: {err}") from err

    def _load_version(self, attempt: AttemptId, record: CommitRecord) -> None:
        try:
            table = from_json(dict[str, AuditDigest], self._archive.get_object("audit", record.audit))
            tensors = replay(self._archive, record, self._catalogue)
            self._applier.restore(tensors, table, cancelled=lambda: self._is_cancelled(attempt))
        except Exception as err:
            raise as_refit_error(err, f"restoring version {record.version}") from err
