"""A slow walk over resident storage against the record's audit table (DESIGN B6).

``Scan`` says what to read next and judges the answer; who calls it holds the receiver's lock and is
clean, so nothing is written between reading and judging.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dcr.audit import EMPTY, combine
from dcr.errors import IntegrityError, RefitError
from dcr.model import (
    AuditDigest,
    AuditFinding,
    AuditProgress,
    AuditTable,
    Classification,
    CommitRecord,
    PathClass,
    TensorSpec,
    width_bytes,
)
from dcr.receiver.writer import PADDING, Slice, Writer

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Begun:
    """A tensor of which elements before ``at`` were read, all under one version."""

    record: CommitRecord
    name: str
    at: int
    digest: AuditDigest


class Scan:
    """Walks over all tensors, again and again, ``slice_bytes`` a step; not thread-safe.

    Digests of a tensor read in several steps are added up only under one version: if a transition
    came in between, the tensor is dropped and then read at once, however large it is, or frequent
    transitions would keep it from ever being proven.
    """

    def __init__(
        self, writer: Writer, specs: Mapping[str, TensorSpec], *, slice_bytes: int = 16 * MIB
    ) -> None:
        self.progress = AuditProgress()
        self._writer = writer
        self._specs = {name: spec for name, spec in specs.items() if spec.num_elements}
        self._slice_bytes = slice_bytes
        self._classes: Classification = {}
        self._queue: list[str] = []
        self._begun: _Begun | None = None
        self._at_once: set[str] = set()

    def step(self, record: CommitRecord, table: AuditTable, classes: Classification) -> tuple[int, str]:
        """Read and judge the next slices of what ``record`` made; bytes read, and a tensor that is wrong.

        Raises:
            RefitError: storage could not be read; nothing is known.
        """
        slices = self._next(record, classes)
        wrong = self._judge(record, table, slices)
        num_bytes = sum(self._num_bytes(piece) for piece in slices)
        done, ended = self.progress, not self._queue and not wrong
        self.progress = replace(
            done, num_bytes=done.num_bytes + num_bytes, num_passes=done.num_passes + ended
        )
        return num_bytes, wrong

    def count_seconds(self, seconds: float) -> None:
        """Add to the seconds spent."""
        self.progress = replace(self.progress, seconds=self.progress.seconds + seconds)

    def found(self, finding: AuditFinding) -> None:
        """Remember what is to be reported, and begin a new pass."""
        self.progress = replace(self.progress, finding=finding)
        self._queue, self._begun = [], None

    def _next(self, record: CommitRecord, classes: Classification) -> list[Slice]:
        """What to read now; the last one may end before its tensor does."""
        if self._begun is not None and self._begun.record != record:
            self._at_once.add(self._begun.name)
            self._begun = None
            self.progress = replace(self.progress, num_dropped=self.progress.num_dropped + 1)
        if not self._queue or classes is not self._classes:
            self._classes, self._begun = classes, None
            self._queue = sorted(n for n in self._specs if classes.get(n) is not PathClass.SKIP)[::-1]
            slices = [PADDING]
        else:
            slices = []
        left = self._slice_bytes
        while self._queue and left > 0:
            piece = self._piece(self._queue[-1], left)
            slices.append(piece)
            left -= self._num_bytes(piece)
            if piece.stop < self._specs[piece.name].num_elements:
                break
            self._queue.pop()
        return slices

    def _piece(self, name: str, max_bytes: int) -> Slice:
        spec = self._specs[name]
        start = self._begun.at if self._begun is not None and self._begun.name == name else 0
        num = spec.num_elements if name in self._at_once else max(1, max_bytes // width_bytes(spec.dtype))
        return Slice(name, start, min(start + num, spec.num_elements))

    def _num_bytes(self, piece: Slice) -> int:
        return (
            (piece.stop - piece.start) * width_bytes(self._specs[piece.name].dtype) if piece != PADDING else 0
        )

    def _judge(self, record: CommitRecord, table: AuditTable, slices: list[Slice]) -> str:
        try:
            digests = self._writer.scan(slices)
        except RefitError as err:
            self._put_back(slices)
            if isinstance(err, IntegrityError):
                return self._unequal_copies(slices)
            raise
        for piece, digest in zip(slices, digests, strict=True):
            if piece == PADDING:
                continue
            begun, self._begun = self._begun, None
            before = begun.digest if begun is not None and begun.name == piece.name else EMPTY
            whole = combine(before, digest)
            if piece.stop < self._specs[piece.name].num_elements:
                self._begun = _Begun(record, piece.name, piece.stop, whole)
            elif whole != table.get(piece.name):
                return piece.name
            self._at_once.discard(piece.name)
        return ""

    def _put_back(self, slices: list[Slice]) -> None:
        """Nothing is known of these tensors: this pass reads them from their beginning."""
        self._begun = None
        names = dict.fromkeys(piece.name for piece in slices if piece != PADDING)
        self._queue += [name for name in reversed(names) if name not in self._queue[-1:]]

    def _unequal_copies(self, slices: list[Slice]) -> str:
        """The tensor whose copies differ, asked again one by one; empty if none does any more."""
        for piece in slices:
            try:
                self._writer.scan([piece])
            except IntegrityError:
                return piece.name
        return ""
