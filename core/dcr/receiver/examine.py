"""Background audit of one instance, step by step; what is wrong takes it out (DESIGN B6, P11)."""

import logging
import time
from collections.abc import Callable

from dcr import observe
from dcr.errors import IntegrityError, RefitError
from dcr.model import AuditFinding, CommitRecord, ReceiverDiagnosis, ReceiverReport
from dcr.receiver.holding import Holding
from dcr.receiver.proof import Prover
from dcr.receiver.scan import MIB, Scan
from dcr.receiver.writer import PADDING, Slice, Writer

_log = logging.getLogger(__name__)
_SHOWN = 4


class Examiner:
    """Reads resident storage through ``writer`` while it is clean; one thread calls ``step``.

    A mismatch that is seen again when the tensor is read once more shuts the gate and makes the
    instance EMPTY. Only then is the place looked for, which needs the archive. ``report`` is asked
    under the lock.
    """

    def __init__(
        self,
        name: str,
        held: Holding,
        report: Callable[[], ReceiverReport],
        writer: Writer,
        prover: Prover,
        *,
        slice_bytes: int = 16 * MIB,
    ) -> None:
        self._name = name
        self._held = held
        self._report = report
        self._writer = writer
        self._prover = prover
        self._scan = Scan(writer, prover.specs, slice_bytes=slice_bytes)

    def step(self) -> int:
        """Read one slice, if the instance is clean; canonical bytes that were read.

        Raises:
            RefitError: storage or archive could not be read; nothing is known, try again later.
        """
        started = time.perf_counter()
        with self._held.clean() as record:
            if record is None:
                return 0
            with observe.span("receiver.scan", version=record.version):
                table = self._prover.committed(record)
                num_bytes, wrong = self._scan.step(record, table, self._held.classification)
            words = self._seen_again(wrong, record) if wrong else ""
            token = self._held.condemn(words) if words else -1
        if words:
            self._scan.found(self._locate(wrong, words, record, token))
            _log.error("%s: %s", self._name, self._scan.progress.finding)
        self._scan.count_seconds(time.perf_counter() - started)
        return num_bytes

    def diagnose(self) -> ReceiverDiagnosis:
        """State, choices and audit, for ``dcr doctor``; a storage that was rebuilt is only told."""
        with self._held.lock:
            report = self._report()
            return ReceiverDiagnosis(
                receiver=report.receiver,
                incarnation=report.incarnation,
                state=report.state,
                version=report.version,
                rebuilt=self._writer.rebuilt(),
                ranks=self._writer.diagnose(),
                audit=self._scan.progress,
            )

    def _seen_again(self, name: str, record: CommitRecord) -> str:
        """What is wrong with the whole of it, read once more; empty if nothing is."""
        whole = PADDING if name == PADDING.name else Slice(name, 0, self._prover.specs[name].num_elements)
        try:
            (digest,) = self._writer.scan([whole])
        except IntegrityError as err:
            return str(err)
        if whole != PADDING and digest != self._prover.committed(record)[name]:
            return f"{name}: resident bits are not those of version {record.version}"
        _log.warning("%s: %s was read wrong once and right again: check the memory", self._name, name)
        return ""

    def _locate(self, name: str, words: str, record: CommitRecord, token: int) -> AuditFinding:
        """Compare ``name`` on every rank with the archive's bits, unless somebody repaired it already."""
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        if name == PADDING.name:
            return AuditFinding(name, record.version, record.attempt, (), words)
        try:
            truth = self._prover.bits(record, self._prover.specs[name].name)
            with self._held.lock:
                if self._held.num_standings == token:
                    found = self._writer.locate(name, truth)
        except RefitError as err:
            _log.warning("%s: cannot tell which elements of %s are wrong: %s", self._name, name, err)
        ranges = sorted({piece for pieces in found.values() for piece in pieces})
        return AuditFinding(name, record.version, record.attempt, tuple(ranges), f"{words}{_where(found)}")


def _where(found: dict[int, tuple[tuple[int, int], ...]]) -> str:
    return "".join(
        f"; rank {rank} at elements " + ", ".join(f"{start}..{stop - 1}" for start, stop in pieces[:_SHOWN])
        for rank, pieces in sorted(found.items())
    )
