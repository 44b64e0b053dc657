"""Compare one task's candidate with its tracker and project what changed (DESIGN R2, R4).

Shapes: N local elements, E changed ones that have a canonical place.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr import observe
from dcr.errors import ConfigError
from dcr.model import Bits, bits_dtype
from dcr.source.detect import Indices, changed_indices
from dcr.source.digests import TaskDigests, advance
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

    def digests(self, audit_key: str, before: TaskDigests) -> TaskDigests:
        """Digests of the candidate, given those of the baseline."""
        return advance(audit_key, self.task, before, (self.locations, self.old, self.new))


def require_shape(task: AffineTask, bits: NDArray[Any], what: str) -> None:
    """Refuse bits that are not the task's.

    Raises:
        ConfigError: another element width, dimension or count.
    """
    wanted = bits_dtype(task.dtype)
    if bits.dtype != wanted or bits.shape != (task.num_elements,):
        raise ConfigError(
            f"{what} of task {task.key!r} ({task.dtype}) must be {wanted} [{task.num_elements}], got "
            f"{bits.dtype} {list(bits.shape)}; cast the source to the dtype of the catalogue first"
        )


def find_change(task: AffineTask, candidate: Bits, baseline: Bits) -> TaskChange:
    """Compare on stored bits, then map local to canonical indices.

    Raises:
        ConfigError: the candidate's bits are not of the task's dtype and size.
    """
    require_shape(task, candidate, "the candidate")
    with observe.span("owner.compare", key=task.key, num_bytes=candidate.nbytes):
        local = changed_indices(candidate, baseline)
    with observe.span("owner.project", key=task.key, num_changed=local.size):
        return _project(task, local, candidate, baseline)


def whole(task: AffineTask, bits: Bits) -> TaskChange:
    """Every element of ``bits`` [N] as a change (the anchor)."""
    local = np.arange(task.num_elements, dtype=np.int64)
    return _project(task, local, bits, bits)


def _project(task: AffineTask, local: Indices, candidate: Bits, baseline: Bits) -> TaskChange:
    locations, order = task.map.to_far_sorted(local)
    if order is not None:
        local = local[order]
    return TaskChange(task, local, locations, baseline[local], candidate[local])
