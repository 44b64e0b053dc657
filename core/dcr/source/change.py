"""Compare one task's candidate with its tracker and project what changed (DESIGN R2, R4).

Shapes: N local elements, E changed ones that have a canonical place.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dcr import observe
from dcr.errors import ConfigError
from dcr.model import Bits, bits_dtype
from dcr.source.detect import Candidate, Changes, Indices, find_few_changes, host_bits
from dcr.source.digests import TaskDigests, advance, chunk_ranges, digest_task
from dcr.source.task import AffineTask


@dataclass(frozen=True, slots=True, eq=False)
class TaskChange:
    """Changed elements of one task: ``local`` and ascending canonical ``locations``, int64 [E].

    ``old`` and ``new`` are the stored bits [E] of baseline and candidate, in the order of ``locations``.
    """

    task: AffineTask
    local: Indices
    locations: Indices
    old: Bits
    new: Bits

    @property
    def num_changed(self) -> int:
        """E."""
        return self.locations.size

    def digests(self, audit_key: str, before: TaskDigests) -> TaskDigests:
        """Digests of the candidate, given those of the baseline."""
        return self.proofs(audit_key, before)[0]

    def proofs(self, audit_key: str, before: TaskDigests) -> tuple[TaskDigests, TaskDigests]:
        """Digests of the candidate, and of its changed elements alone; name by name."""
        return advance(audit_key, self.task, before, (self.locations, self.old, self.new))

    def write(self, tracker: Bits) -> None:
        """Bring the ``tracker`` [N] to the candidate."""
        tracker[self.local] = self.new


@dataclass(frozen=True, slots=True, eq=False)
class WholeChange:
    """A task of which so much changed that it is handled whole, without an index for every element.

    ``new`` are the candidate's stored bits [N], ``num_changed`` how many mapped ones differ.
    """

    task: AffineTask
    new: Bits
    num_changed: int

    def digests(self, audit_key: str, before: TaskDigests) -> TaskDigests:
        """Digests of the candidate; nothing follows from ``before``."""
        del before
        return digest_task(audit_key, self.task, self.new)

    def proofs(self, audit_key: str, before: TaskDigests) -> tuple[TaskDigests, TaskDigests]:
        """Digests of the candidate, twice: all of its elements are sent."""
        digests = self.digests(audit_key, before)
        return digests, digests

    def write(self, tracker: Bits) -> None:
        """Bring the ``tracker`` [N] to the candidate."""
        tracker[:] = self.new


Change: TypeAlias = TaskChange | WholeChange


def require_shape(task: AffineTask, bits: Candidate, what: str) -> None:
    """Refuse bits that are not the task's; of a tensor, those of another width or count.

    Raises:
        ConfigError: another element width, dimension or count.
    """
    wanted = bits_dtype(task.dtype)
    if isinstance(bits, np.ndarray):
        fits = bits.dtype == wanted and bits.shape == (task.num_elements,)
    else:
        fits = str(bits.dtype) == f"torch.{task.dtype}" and bits.numel() == task.num_elements
    if not fits:
        raise ConfigError(
            f"{what} of task {task.key!r} ({task.dtype}) must be {wanted} [{task.num_elements}], got "
            f"{bits.dtype} {list(bits.shape)}; cast the source to the dtype of the catalogue first"
        )


def find_change(
    task: AffineTask,
    candidate: Candidate,
    baseline: Bits,
    *,
    dense_share: float = 1.0,
    threads: int = 1,
) -> Change:
    """Compare stored bits [N] of both, in up to ``threads`` threads, then map local to canonical indices.

    If more than ``dense_share`` of the elements differ the result is a WholeChange.

    Raises:
        ConfigError: the candidate's bits are not of the task's dtype and size.
    """
    require_shape(task, candidate, "the candidate")
    with observe.span("owner.compare", key=task.key, num_bytes=baseline.nbytes):
        found = find_few_changes(candidate, baseline, int(dense_share * task.num_elements), threads=threads)
        if found is None:
            bits = host_bits(candidate)
            return WholeChange(task, bits, _count_mapped(task, bits, baseline))
    with observe.span("owner.project", key=task.key, num_changed=found.local.size):
        return _project(task, found)


def everything(task: AffineTask) -> tuple[Indices, Indices | None]:
    """Every mapped element: ascending locations [F], and the local index of each (None: 0 .. N - 1)."""
    shift = task.map.shift
    if shift is not None:
        return np.arange(shift, shift + task.num_elements, dtype=np.int64), None
    return task.map.to_far_sorted(np.arange(task.num_elements, dtype=np.int64))


def _project(task: AffineTask, found: Changes) -> TaskChange:
    if task.map.shift == 0:
        return TaskChange(task, found.local, found.local, found.old, found.new)
    locations, order = task.map.to_far_sorted(found.local)
    if order is None:
        return TaskChange(task, found.local, locations, found.old, found.new)
    return TaskChange(task, found.local[order], locations, found.old[order], found.new[order])


def _count_mapped(task: AffineTask, candidate: Bits, baseline: Bits) -> int:
    """How many mapped elements differ, in pieces of bounded size."""
    total = 0
    for local in chunk_ranges(task.num_elements):
        part = slice(int(local[0]), int(local[-1]) + 1)
        differs = candidate[part] != baseline[part]
        if not task.map.is_complete:
            differs &= task.map.to_far(local) >= 0
        total += int(np.count_nonzero(differs))
    return total
