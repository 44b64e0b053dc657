"""Background audit of one instance, step by step; what is wrong takes it out (DESIGN B6, P11)."""

import logging
import time
from typing import TYPE_CHECKING

from dcr import observe
from dcr.errors import IntegrityError, RefitError
from dcr.model import AuditFinding, Catalogue, CommitRecord, ReceiverDiagnosis, ReceiverState
from dcr.receiver.scan import MIB, Scan
from dcr.receiver.writer import PADDING, Slice, Writer
from dcr.transport.base import Archive
from dcr.transport.replay import replay_tensors

if TYPE_CHECKING:
    from dcr.receiver.agent import ReceiverAgent

_log = logging.getLogger(__name__)
_SHOWN = 4


class Examiner:
    """Reads ``agent``'s resident storage through ``writer`` while it is clean; one thread calls ``step``.

    A mismatch that is seen again when the tensor is read once more shuts the gate and makes the
    instance EMPTY. Only then is the place looked for, which needs the archive.
    """

    def __init__(
        self,
        agent: "ReceiverAgent",
        writer: Writer,
        archive: Archive,
        catalogue: Catalogue,
        *,
        slice_bytes: int = 16 * MIB,
    ) -> None:
        self._agent = agent
        self._writer = writer
        self._archive = archive
        self._catalogue = catalogue
        self._specs = catalogue.by_name()
        self._scan = Scan(writer, catalogue, slice_bytes=slice_bytes)

    def step(self) -> int:
        """Read one slice, if the instance is clean; canonical bytes that were read.

        Raises:
            RefitError: storage or archive could not be read; nothing is known, try again later.
        """
        started = time.perf_counter()
        with self._agent.holding_clean() as record:
            if record is None:
                return 0
            with observe.span("receiver.scan", version=record.version):
                table = self._agent.committed(record)
                num_bytes, wrong = self._scan.step(record, table, self._agent.classification)
            words = self._seen_again(wrong, record) if wrong else ""
            token = self._agent.condemn(words) if words else -1
        if words:
            self._scan.found(self._locate(wrong, words, record, token))
            _log.error("%s: %s", self._agent.name, self._scan.progress.finding)
        self._scan.count_seconds(time.perf_counter() - started)
        return num_bytes

    def diagnose(self) -> ReceiverDiagnosis:
        """State, choices and audit, for ``dcr doctor``; a storage that was rebuilt is only told."""
        with self._agent.holding() as report:
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
        whole = PADDING if name == PADDING.name else Slice(name, 0, self._specs[name].num_elements)
        try:
            (digest,) = self._writer.scan([whole])
        except IntegrityError as err:
            return str(err)
        if whole != PADDING and digest != self._agent.committed(record)[name]:
            return f"{name}: resident bits are not those of version {record.version}"
        _log.warning("%s: %s was read wrong once and right again: check the memory", self._agent.name, name)
        return ""

    def _locate(self, name: str, words: str, record: CommitRecord, token: int) -> AuditFinding:
        """Compare ``name`` on every rank with the archive's bits, unless somebody repaired it already."""
        found: dict[int, tuple[tuple[int, int], ...]] = {}
        if name == PADDING.name:
            return AuditFinding(name, record.version, record.attempt, (), words)
        try:
            primary = self._specs[name].name
            truth = replay_tensors(self._archive, record, self._catalogue, [primary])[primary]
            with self._agent.holding() as report:
                if report.state is ReceiverState.EMPTY and self._agent.num_standings == token:
                    found = self._writer.locate(name, truth)
        except RefitError as err:
            _log.warning("%s: cannot tell which elements of %s are wrong: %s", self._agent.name, name, err)
        ranges = sorted({piece for pieces in found.values() for piece in pieces})
        return AuditFinding(name, record.version, record.attempt, tuple(ranges), f"{words}{_where(found)}")


def _where(found: dict[int, tuple[tuple[int, int], ...]]) -> str:
    return "".join(
        f"; rank {rank} at elements " + ", ".join(f"{start}..{stop - 1}" for start, stop in pieces[:_SHOWN])
        for rank, pieces in sorted(found.items())
    )
