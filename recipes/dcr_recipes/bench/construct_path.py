"""One construction as the owner runs it, into a transport that keeps nothing but digests."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from dcr.config import CodecConfig
from dcr.model import AttemptId, AuditTable, Catalogue, OwnerClose, PathClass, PayloadRef
from dcr.source import Baseline
from dcr.source.candidate import Candidate
from dcr.source.convert import Converter
from dcr.source.ports import ShardSource
from dcr.source.publish import Lane, Work, publish_payloads
from dcr.source.representation import FirstAttempt, Representation, Retry

RUN = "0" * 32
AUDIT_KEY = "00" * 16


class NullTransport:
    """A ``Transport`` whose link is infinitely fast."""

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        """Forget the bytes; ``publish_payloads`` lists their digest."""

    def close(self, close: OwnerClose) -> None:
        """Nothing to tell."""

    def fetch(
        self, attempt: AttemptId, seen: Collection[tuple[int, int]]
    ) -> Iterator[tuple[PayloadRef, bytes]]:
        """Nothing arrives."""
        del attempt, seen
        return iter(())

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """Nothing is under way."""


@dataclass(frozen=True, slots=True)
class Built:
    """Payloads of one construction by digest, their bytes, changed elements, digests of the candidate."""

    digests: tuple[str, ...]
    num_bytes: int
    num_changed: int
    audit: AuditTable = field(default_factory=dict)


class Construction:
    """Builds the payloads of one attempt again and again; the trackers stay at version 0."""

    def __init__(
        self, source: ShardSource, baseline: Baseline, codec: CodecConfig, *, overwrite_only: bool = False
    ) -> None:
        self._baseline = baseline
        self._codec = codec
        self._catalogue = Catalogue(run=RUN, audit_key=AUDIT_KEY, tensors=source.tensors())
        self._classification = dict.fromkeys(self._catalogue.by_name(), PathClass.XOR)
        self._representation: Representation = (
            Retry() if overwrite_only else FirstAttempt(self._classification, codec.name)
        )
        self._converter = Converter(source, baseline, self._catalogue.by_name(), AUDIT_KEY)
        self._number = 0

    def run(self, threads: int = 1) -> Built:
        """Construct everything; ``threads`` convert and encode, as ``codec.threads`` says."""
        self._number += 1
        candidate = Candidate(step=1, counters="", presentation=self._number)
        convert = self._converter.changes(candidate, self._representation, self._classification)
        work = Work(AttemptId(1, 1), 0, self._baseline.tasks, convert, lambda: None)
        close = publish_payloads(work, self._lane(threads))
        return Built(
            tuple(ref.digest for ref in close.payloads),
            sum(ref.num_bytes for ref in close.payloads),
            close.num_changed,
            close.audit,
        )

    def _lane(self, threads: int) -> Lane:
        codec = replace(self._codec, threads=threads)
        return Lane(0, RUN, self._catalogue.digest(), (), codec, NullTransport())
