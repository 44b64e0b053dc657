"""From changed tasks to buckets of items (paper sections 5 and 6.1, Appendix C; DESIGN R4, R6, R8).

Everything here is a generator over tasks: at most one bucket of items is held in memory.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from dcr.audit import digest_at
from dcr.codec import Item
from dcr.config import CodecConfig
from dcr.errors import UnsupportedPath
from dcr.model import Classification, Encoding, PathClass, TensorSpec, width_bytes
from dcr.source.change import TaskChange
from dcr.source.digests import names_of
from dcr.source.task import AffineTask
from dcr.transport.values import differences

Specs: TypeAlias = Mapping[str, TensorSpec]
"""Canonical name, aliases included -> the tensor."""

Convert: TypeAlias = Callable[[AffineTask], Sequence[Item]]

MIB = 1 << 20


def refuse_unsupported(tasks: Sequence[AffineTask], classification: Classification) -> None:
    """Stop before anything is published if a receiver cannot be refitted (R11).

    Raises:
        UnsupportedPath: names the tensors.
    """
    names = {name for task in tasks for name in names_of(task)}
    refused = sorted(name for name in names if classification.get(name) is PathClass.REFUSED)
    if refused:
        raise UnsupportedPath(f"a receiver's loader cannot take {refused}; use a dense refit (refit=dense)")


def emitted_names(task: AffineTask, classification: Classification) -> tuple[str, ...]:
    """Names under which a change is sent.

    The primary name always is, even if every receiver skips it: the archive rebuilds trackers from
    committed payloads alone, and takes tied tensors from their primary. An alias is sent only to
    receivers that place it.
    """
    placed = (PathClass.XOR, PathClass.OVERWRITE)
    return (task.name, *(alias for alias in task.aliases if classification.get(alias) in placed))


def make_item(change: TaskChange, name: str, encoding: Encoding, spec: TensorSpec, audit_key: str) -> Item:
    """One owner's entries for one tensor; what ``values`` are follows from ``encoding``."""
    return Item(
        name=name,
        shape=spec.shape,
        dtype=spec.dtype,
        encoding=encoding,
        locations=change.locations,
        values=differences(encoding, change.old, change.new),
        target_digest=digest_at(audit_key, name, change.locations, change.new),
    )


def source_bytes(tasks: Sequence[AffineTask]) -> int:
    """Full size of the local shards, before unchanged elements are dropped."""
    return sum(task.num_elements * width_bytes(task.dtype) for task in tasks)


def chunks(tasks: Sequence[AffineTask], target_bytes: int) -> Iterator[tuple[AffineTask, ...]]:
    """Group whole tasks in order until a group reaches the target, which it may exceed."""
    group: list[AffineTask] = []
    num_bytes = 0
    for task in tasks:
        group.append(task)
        num_bytes += source_bytes([task])
        if num_bytes >= target_bytes:
            yield tuple(group)
            group, num_bytes = [], 0
    if group:
        yield tuple(group)


def buckets(tasks: Sequence[AffineTask], convert: Convert, codec: CodecConfig) -> Iterator[tuple[Item, ...]]:
    """Convert tasks chunk by chunk and pack what they emit; each bucket becomes one payload.

    A bucket counts the full source bytes of each chunk that emits records; chunks are never split.
    """
    bucket: list[Item] = []
    num_bytes = 0
    for chunk in chunks(tasks, codec.chunk_mib * MIB):
        held = len(bucket)
        bucket.extend(item for task in chunk for item in convert(task))
        if len(bucket) > held:
            num_bytes += source_bytes(chunk)
        if bucket and num_bytes >= codec.bucket_mib * MIB:
            yield _taken(bucket)
            num_bytes = 0
    if bucket:
        yield _taken(bucket)


def _taken(bucket: list[Item]) -> tuple[Item, ...]:
    """Empty the bucket into a tuple that only the caller holds."""
    items = tuple(bucket)
    bucket.clear()
    return items
