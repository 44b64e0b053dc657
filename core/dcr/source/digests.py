"""Audit digests of one task's canonical bits, for its name and every alias (DESIGN B6).

Shapes: N local elements, E changed ones. Cropped and padded elements have no digest.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from dcr.audit import combine, digest_map, digest_pair, exchange
from dcr.model import AuditDigest, AuditTable, Bits, digest_hex, to_json
from dcr.source.detect import Indices
from dcr.source.task import AffineTask

TaskDigests: TypeAlias = tuple[AuditDigest, ...]
"""One digest per name of ``names_of(task)``, in that order, over the elements that the task maps."""

DigestTable: TypeAlias = dict[str, TaskDigests]
"""Task key -> digests."""

CHUNK_ELEMENTS = 1 << 20
"""Elements handled at once; bounds the temporary index arrays to a few tens of MiB."""


def names_of(task: AffineTask) -> tuple[str, ...]:
    """The canonical names that share this shard: the primary one, then the aliases."""
    return (task.name, *task.aliases)


def chunk_ranges(num_elements: int) -> Iterator[Indices]:
    """Consecutive local indices 0 .. num_elements - 1, in pieces of bounded size."""
    for start in range(0, num_elements, CHUNK_ELEMENTS):
        yield np.arange(start, min(start + CHUNK_ELEMENTS, num_elements), dtype=np.int64)


def digest_task(audit_key: str, task: AffineTask, bits: Bits) -> TaskDigests:
    """Digest all mapped elements of ``bits`` [N]."""
    return tuple(digest_map(audit_key, name, task.map, bits) for name in names_of(task))


def advance(
    audit_key: str, task: AffineTask, before: TaskDigests, change: tuple[Indices, Bits, Bits]
) -> tuple[TaskDigests, TaskDigests]:
    """Digests after ``change`` = (canonical locations, old bits, new bits), each [E], in O(E).

    The second result digests the new bits alone.
    """
    locations, old, new = change
    pairs = [digest_pair(audit_key, name, locations, (old, new)) for name in names_of(task)]
    after = tuple(exchange(digest, *pair) for digest, pair in zip(before, pairs, strict=True))
    return after, tuple(sent for _, sent in pairs)


def partials(tasks: Sequence[AffineTask], digests: Mapping[str, TaskDigests]) -> AuditTable:
    """Digests by canonical name, summed over the tasks that share it."""
    found: dict[str, list[AuditDigest]] = {}
    for task in tasks:
        for name, digest in zip(names_of(task), digests[task.key], strict=True):
            found.setdefault(name, []).append(digest)
    return {name: combine(*parts) for name, parts in sorted(found.items())}


def candidate_digest(audit: AuditTable) -> str:
    """One digest of all partial digests: names the candidate's bits on this owner (P5)."""
    return digest_hex(to_json(audit))
