"""Proving what resident storage holds (DESIGN P8, R13, B6). The caller holds the receiver's lock."""

import logging
import time
from functools import partial

from dcr import observe
from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import (
    AuditDigest,
    AuditTable,
    Bits,
    Catalogue,
    Classification,
    CommitRecord,
    Manifest,
    from_json,
)
from dcr.receiver import rules
from dcr.receiver.catch_up import CatchUp, CatchUpPolicy
from dcr.receiver.failures import as_refit_error
from dcr.receiver.writer import Cancelled, Writer, require_wanted
from dcr.transport.base import Archive
from dcr.transport.replay import replay, replay_tensors

_log = logging.getLogger(__name__)


class Prover:
    """Compares what ``writer`` reads back with committed and announced digests.

    ``check`` is that of ``dcr.config.RefitConfig``. Without a ``policy`` every restore is a dense load.
    """

    def __init__(
        self,
        writer: Writer,
        archive: Archive,
        catalogue: Catalogue,
        check: str,
        policy: CatchUpPolicy | None = None,
    ) -> None:
        self.specs = catalogue.by_name()
        self._writer = writer
        self._archive = archive
        self._catalogue = catalogue
        self._check = check
        self._table: tuple[str, AuditTable] = ("", {})
        self._catch_up = None if policy is None else CatchUp(writer, archive, catalogue, policy)

    def committed(self, record: CommitRecord) -> AuditTable:
        """Audit table of ``record``; the last one is kept."""
        if self._table[0] != record.audit:
            data = self._archive.get_object("audit", record.audit)
            self._table = (record.audit, from_json(dict[str, AuditDigest], data))
        return self._table[1]

    def bits(self, record: CommitRecord, name: str) -> Bits:
        """Canonical bits [num_elements] of ``record``'s tensor with that primary name, from the archive."""
        return replay_tensors(self._archive, record, self._catalogue, [name])[name]

    def restore(self, record: CommitRecord, cancelled: Cancelled) -> Classification:
        """Bring storage to ``record``'s version and prove it; the classes that hold from now on.

        By one composed delta, if an older version is resident; else, and if that fails, by a dense load.

        Raises:
            RefitError: whatever failed; storage is torn.
        """
        if self._catch_up is not None:
            try:
                classes = self._catch_up.bring(record, self.committed(record), cancelled)
            except Exception as err:
                if cancelled():
                    raise as_refit_error(err, f"catching up with version {record.version}") from err
                _log.warning(
                    "version %d is loaded densely, since catching up failed: %s: %s",
                    record.version, type(err).__name__, err,
                )  # fmt: skip
            else:
                if classes is not None:
                    return classes
        return self.load(record, cancelled)

    def load(self, record: CommitRecord, cancelled: Cancelled) -> Classification:
        """Load ``record``'s version densely from the archive and prove it; see ``restore``.

        Raises:
            RefitError: whatever failed; storage is torn.
        """
        try:
            table = self.committed(record)
            look = partial(require_wanted, cancelled, "restoring")
            tensors = replay(self._archive, record, self._catalogue, look=look)
            self._writer.restore(tensors, table, cancelled=cancelled)
            return self._writer.prewarm()
        except Exception as err:
            raise as_refit_error(err, f"restoring version {record.version}") from err

    def relearn(self, record: CommitRecord) -> Classification:
        """Learn a rebuilt storage anew and prove, through the new map, that it holds ``record``'s version.

        Raises:
            RefitError: it does not, or the loader no longer takes deltas.
        """
        try:
            with observe.span("receiver.relearn", version=record.version):
                classes = self._writer.prewarm()
                resident = self._writer.audit()
            table = self.committed(record)
        except Exception as err:
            raise as_refit_error(err, "learning the rebuilt storage") from err
        wrong = sorted(name for name, digest in resident.items() if digest != table.get(name))
        if wrong:
            raise IntegrityError(
                f"{', '.join(wrong[:8])}: the runtime rebuilt its storage, which no longer holds "
                f"version {record.version}"
            )
        return classes

    def after_apply(self, manifest: Manifest, *, was_torn: bool) -> float:
        """Synchronize and check what the attempt wrote; seconds.

        Raises:
            AttemptFailed: a write is not in place, or the check could not run.
        """
        started = time.perf_counter()
        try:
            self._writer.synchronize()
            if self._check != "off":
                with observe.span("receiver.check", attempt=str(manifest.attempt)):
                    self._writer.check()
        except Exception as err:
            raise as_refit_error(err, "the check could not run") from err
        if rules.audits_whole(self._check, was_torn=was_torn):
            self._audit_whole(manifest)
        return time.perf_counter() - started

    def _audit_whole(self, manifest: Manifest) -> None:
        try:
            with observe.span("receiver.audit", attempt=str(manifest.attempt)):
                rules.check_whole(self._writer.audit(), manifest)
        except (AttemptFailed, IntegrityError) as err:
            raise DecayedBase(str(err)) from err


class DecayedBase(AttemptFailed):
    """Bits outside the delta are wrong: no delta can repair them, the receiver starts from nothing."""
