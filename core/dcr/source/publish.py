"""One attempt of one owner: convert its tasks, publish the payloads, close the list (DESIGN P7, P15)."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from dcr import observe
from dcr.audit import EMPTY
from dcr.codec import Item, encode_payload, stated_digest
from dcr.config import CodecConfig
from dcr.model import AttemptId, OwnerClose, PayloadRef, RunId
from dcr.source.construct import MIB, Chunk, chunks
from dcr.source.digests import DigestTable, TaskDigests, candidate_digest, partials
from dcr.source.pipeline import CheckLive, Stages, run_pipeline
from dcr.source.task import AffineTask
from dcr.transport.base import Outlet

_log = logging.getLogger(__name__)
_NEWS_SHARE = 0.05
"""Share of an owner's elements in shards sent whole from which it is worth a warning."""
Payload: TypeAlias = tuple[PayloadRef, bytes]


@dataclass(frozen=True, slots=True)
class Converted:
    """What one task contributes: its items, the candidate's digests, unique changed elements.

    ``whole``: so much of the shard changed that all of its elements are sent.
    """

    items: Sequence[Item]
    digests: TaskDigests
    num_changed: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Lane:
    """Where this owner's payloads go and what their heads say about their origin.

    ``empty_names`` are canonical tensors without elements: no shard covers them, and the audit
    table names every tensor all the same.
    """

    owner: int
    run: RunId
    catalogue: str
    empty_names: tuple[str, ...]
    codec: CodecConfig
    transport: Outlet


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt's work. ``parent`` is the version the items apply to, -1 for the anchor.

    ``convert`` is called in several threads at once, for different tasks. ``check_live`` is asked before
    every task and payload. ``known``: payloads, by sequence, that earlier attempts have stored; one that
    comes out the same is named, not sent again (P6). ``note`` hears of every payload that is durable.
    """

    attempt: AttemptId
    parent: int
    tasks: Sequence[AffineTask]
    convert: Callable[[AffineTask], Converted]
    check_live: CheckLive
    known: Mapping[int, PayloadRef] = field(default_factory=dict)
    note: Callable[[PayloadRef], None] = lambda ref: None

    @property
    def name(self) -> str:
        """The attempt, for traces; a later anchor is no part of the attempt that committed its version."""
        return f"anchor-{self.attempt}" if self.parent < 0 < self.attempt.version else str(self.attempt)


def publish_payloads(work: Work, lane: Lane) -> OwnerClose:
    """Publish bucket by bucket while comparing; returns the list, still to be closed with ``close_list``.

    Nothing changed means an empty list. See ``dcr.source.pipeline`` for threads and memory.

    Raises:
        AttemptFailed, Conflict: the attempt was stopped or replaced.
    """
    job = _Job(work, lane)
    grouped = tuple(chunks(work.tasks, lane.codec.chunk_mib * MIB))
    stages = Stages(convert=job.convert, take=job.take, encode=job.encode, send=job.send)
    refs = run_pipeline(grouped, stages, lane.codec, work.check_live)
    job.tell_if_dense()
    audit = dict.fromkeys(lane.empty_names, EMPTY) | partials(work.tasks, job.digests)
    return OwnerClose(
        work.attempt,
        lane.owner,
        tuple(refs),
        audit,
        job.num_changed,
        job.num_elements,
        candidate_digest(audit),
    )


def close_list(close: OwnerClose, lane: Lane) -> None:
    """Declare the list complete. Idempotent: after a StoreError the same list is closed again."""
    where = {"owner": lane.owner, "attempt": str(close.attempt), "num_payloads": len(close.payloads)}
    with observe.stage("owner.close", **where):
        lane.transport.close(close)


@dataclass(slots=True)
class _Job:
    """The stages of one attempt, and what they add up to."""

    work: Work
    lane: Lane
    digests: DigestTable = field(default_factory=dict)
    num_changed: int = 0
    whole: list[AffineTask] = field(default_factory=list)

    @property
    def num_elements(self) -> int:
        return sum(task.map.num_mapped for task in self.work.tasks)

    def convert(self, chunk: Chunk, live: CheckLive) -> list[tuple[AffineTask, Converted]]:
        found = []
        for task in chunk:
            live()
            with observe.stage("owner.task", key=task.key, **self._where):
                found.append((task, self.work.convert(task)))
        return found

    def take(self, found: list[tuple[AffineTask, Converted]]) -> list[Item]:
        for task, done in found:
            self.digests[task.key] = done.digests
            self.num_changed += done.num_changed
            if done.whole:
                self.whole.append(task)
        return [item for _, done in found for item in done.items]

    def encode(self, sequence: int, items: Sequence[Item]) -> Payload:
        known = self.work.known.get(sequence)
        if known is not None and known.attempt is not None:
            data = self._encoded(known.attempt, sequence, items)
            if stated_digest(data) == known.digest:
                return known, b""
        data = self._encoded(self.work.attempt, sequence, items)
        return PayloadRef(self.lane.owner, sequence, stated_digest(data), len(data)), data

    def _encoded(self, attempt: AttemptId, sequence: int, items: Sequence[Item]) -> bytes:
        work, lane = self.work, self.lane
        with observe.span("owner.encode", num_items=len(items), sequence=sequence, **self._where):
            return encode_payload(
                items,
                attempt=attempt,
                owner=lane.owner,
                sequence=sequence,
                run=lane.run,
                parent=work.parent,
                catalogue=lane.catalogue,
                codec=lane.codec,
            )

    def send(self, payload: Payload) -> PayloadRef:
        ref, data = payload
        if ref.attempt is not None:  # it is stored already
            return ref
        where = {"sequence": ref.sequence, **self._where}
        with (
            observe.stage("owner.publish", **where),
            observe.span("owner.send", num_bytes=len(data), **where),
        ):
            self.lane.transport.publish(self.work.attempt, ref, data)
        self.work.note(ref)
        return ref

    def tell_if_dense(self) -> None:
        """Say how many shards were sent whole: after a restart that is expected, later it is not (B8).

        A few small ones are no news: biases and scales of wide dtypes change in every step.
        """
        if not self.whole:
            return
        share = self.num_changed / self.num_elements
        observe.point("owner.dense", num_shards=len(self.whole), share=share, **self._where)
        if sum(task.num_elements for task in self.whole) < _NEWS_SHARE * self.num_elements:
            return
        _log.warning(
            "attempt %s: %d of %d shards changed so much that they are sent whole, the first is %r; %.0f%% "
            "of all elements changed: expected after a restart, else look at the learning rate",
            self.work.attempt, len(self.whole), len(self.work.tasks), self.whole[0].key, 100 * share,
        )  # fmt: skip

    @property
    def _where(self) -> dict[str, object]:
        return {"owner": self.lane.owner, "attempt": self.work.name}
