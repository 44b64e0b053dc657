"""Which names a change is sent under, and how tasks are grouped (paper Appendix C; DESIGN R6, R8)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from dcr.errors import UnsupportedPath
from dcr.model import Classification, PathClass, TensorSpec, width_bytes
from dcr.source.digests import names_of
from dcr.source.task import AffineTask

Specs: TypeAlias = Mapping[str, TensorSpec]
"""Canonical name, aliases included -> the tensor."""

Chunk: TypeAlias = tuple[AffineTask, ...]
"""Whole tasks that are converted together."""

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


def source_bytes(tasks: Sequence[AffineTask]) -> int:
    """Full size of the local shards, before unchanged elements are dropped."""
    return sum(task.num_elements * width_bytes(task.dtype) for task in tasks)


def chunks(tasks: Sequence[AffineTask], target_bytes: int) -> Iterator[Chunk]:
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
