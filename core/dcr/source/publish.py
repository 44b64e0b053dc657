"""One attempt of one owner: convert its tasks, publish the payloads, close the list (DESIGN P7, P15)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dcr import observe
from dcr.audit import EMPTY
from dcr.codec import Item, encode_payload, payload_digest
from dcr.config import CodecConfig
from dcr.model import AttemptId, OwnerClose, PayloadRef, RunId
from dcr.source.construct import buckets
from dcr.source.digests import DigestTable, TaskDigests, candidate_digest, partials
from dcr.source.task import AffineTask
from dcr.transport.base import Transport

CheckLive: TypeAlias = Callable[[], None]
"""Raises as soon as the attempt must end."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What one task contributes: its items, the candidate's digests, unique changed elements."""

    items: Sequence[Item]
    digests: TaskDigests
    num_changed: int


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
    transport: Transport


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt's work. ``parent`` is the version the items apply to, -1 for the anchor.

    ``check_live`` is asked before every task and payload.
    """

    attempt: AttemptId
    parent: int
    tasks: Sequence[AffineTask]
    convert: Callable[[AffineTask], Converted]
    check_live: CheckLive


def publish_payloads(work: Work, lane: Lane) -> OwnerClose:
    """Publish bucket by bucket while comparing; returns the list, still to be closed with ``close_list``.

    Nothing changed means an empty list.

    Raises:
        AttemptFailed, Conflict: the attempt was stopped or replaced.
    """
    digests: DigestTable = {}
    num_changed = 0

    def convert(task: AffineTask) -> Sequence[Item]:
        nonlocal num_changed
        work.check_live()
        where = {"owner": lane.owner, "attempt": str(work.attempt), "key": task.key}
        with observe.stage("owner.task", **where):
            done = work.convert(task)
            digests[task.key] = done.digests
            num_changed += done.num_changed
        return done.items

    refs: list[PayloadRef] = []
    for items in buckets(work.tasks, convert, lane.codec):
        work.check_live()
        refs.append(_publish(work, lane, len(refs), items))
        del items  # or it would live on while the next bucket is filled
    audit = dict.fromkeys(lane.empty_names, EMPTY) | partials(work.tasks, digests)
    num_elements = sum(task.map.num_mapped for task in work.tasks)
    return OwnerClose(
        work.attempt, lane.owner, tuple(refs), audit, num_changed, num_elements, candidate_digest(audit)
    )


def close_list(close: OwnerClose, lane: Lane) -> None:
    """Declare the list complete. Idempotent: after a StoreError the same list is closed again."""
    where = {"owner": lane.owner, "attempt": str(close.attempt), "num_payloads": len(close.payloads)}
    with observe.stage("owner.close", **where):
        lane.transport.close(close)


def _publish(work: Work, lane: Lane, sequence: int, items: Sequence[Item]) -> PayloadRef:
    where = {"owner": lane.owner, "attempt": str(work.attempt), "sequence": sequence}
    with observe.span("owner.encode", num_items=len(items), **where):
        data = encode_payload(
            items,
            attempt=work.attempt,
            owner=lane.owner,
            sequence=sequence,
            run=lane.run,
            parent=work.parent,
            catalogue=lane.catalogue,
            codec=lane.codec,
        )
        ref = PayloadRef(lane.owner, sequence, payload_digest(data), len(data))
    with observe.stage("owner.publish", **where), observe.span("owner.send", num_bytes=len(data), **where):
        lane.transport.publish(work.attempt, ref, data)
    return ref
