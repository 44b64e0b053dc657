"""One owner per unique source element (DESIGN R1)."""

import hashlib
from collections.abc import Sequence

from dcr.errors import ConfigError
from dcr.source.task import AffineTask


def stable_hash(name: str) -> int:
    """64-bit BLAKE2b hash of a canonical name: equal in every process, attempt and version of Python."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def owner_of(task: AffineTask) -> int:
    """The rank that compares and publishes this shard; hashing names balances tensors over replicas.

    Raises:
        ConfigError: the task names no replica, or not in ascending order.
    """
    if not task.replicas or list(task.replicas) != sorted(set(task.replicas)):
        raise ConfigError(f"replicas of task {task.key!r} must be distinct ranks, ascending: {task.replicas}")
    return task.replicas[stable_hash(task.name) % len(task.replicas)]


def owned(tasks: Sequence[AffineTask], rank: int) -> tuple[AffineTask, ...]:
    """The tasks of ``rank`` that it owns, in their given order.

    Raises:
        ConfigError: a task is not held by ``rank``, or two tasks share a key.
    """
    keys = [task.key for task in tasks]
    if len(set(keys)) != len(keys):
        twice = sorted({key for key in keys if keys.count(key) > 1})
        raise ConfigError(f"task keys must be unique on a rank; rank {rank} repeats {twice}")
    for task in tasks:
        if rank not in task.replicas:
            raise ConfigError(f"rank {rank} offers task {task.key!r}, whose replicas are {task.replicas}")
    return tuple(task for task in tasks if owner_of(task) == rank)
