"""What a refit of a model in a layout will be made of, counted before training (DESIGN section 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2

from dcr.errors import ConfigError
from dcr.model import TensorSpec, width_bytes
from dcr.source.ownership import owner_of, stable_hash
from dcr.source.shares import OWNERSHIPS, owned_ranges
from dcr.source.task import AffineTask

VALUE_BITS = 3.0
"""Bits of a changed value beside its location, as ``codec=planes`` codes steps of an optimizer."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Shards of all ranks, each replica group once.

    ``direct`` and ``inputs`` are the tasks of direct projection and the source shards of residual
    conversions (whose ``name`` is that of the source); ``residual`` are canonical names.
    """

    tensors: tuple[TensorSpec, ...]
    residual: frozenset[str]
    direct: Sequence[AffineTask]
    inputs: Sequence[AffineTask]
    world: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The figures of ``dcr plan``: items as if everything changed, bytes of one dense refit."""

    num_tensors: int
    num_affine: int
    num_residual: int
    delta_items: int
    overwrite_items: int
    bytes_total: int
    bytes_residual: int
    owner_bytes_min: int
    owner_bytes_max: int
    baseline_bytes_per_rank: int
    payload_bytes: int


def report(plan: Plan, rate: float, ownership: str = "balanced") -> PlanReport:
    """Count and balance; ``rate`` is the share of elements that a step is expected to change.

    Index ranges of ``balanced`` ownership are items of their own. A rank's baseline, on average, is
    its part of one copy of the source and of the canonical residual tensors (R3).

    Raises:
        ConfigError: another ownership.
    """
    if ownership not in OWNERSHIPS:
        raise ConfigError(f"ownership {ownership!r} must be one of {', '.join(OWNERSHIPS)}")
    owners = [0] * plan.world
    items = _assign(plan.direct, owners, ownership)
    _assign(plan.inputs, owners, ownership)
    for spec in plan.tensors:
        if spec.name in plan.residual:
            owners[stable_hash(spec.name) % plan.world] += spec.num_bytes
    total = sum(spec.num_bytes for spec in plan.tensors)
    residual = sum(spec.num_bytes for spec in plan.tensors if spec.name in plan.residual)
    changed = rate * sum(spec.num_elements for spec in plan.tensors)
    return PlanReport(
        num_tensors=len(plan.tensors),
        num_affine=len(plan.tensors) - len(plan.residual),
        num_residual=len(plan.residual),
        delta_items=items,
        overwrite_items=len(plan.residual),
        bytes_total=total,
        bytes_residual=residual,
        owner_bytes_min=min(owners),
        owner_bytes_max=max(owners),
        baseline_bytes_per_rank=(total + residual) // plan.world,
        payload_bytes=round(changed * (location_bits(rate) + VALUE_BITS) / 8),
    )


def _assign(tasks: Sequence[AffineTask], owners: list[int], ownership: str) -> int:
    """Add the bytes of every shard to those of its owners; returns the number of owned parts."""
    if ownership == "published":
        for task in tasks:
            owners[owner_of(task)] += task.num_elements * width_bytes(task.dtype)
        return len(tasks)
    items = 0
    for number, part, owner in owned_ranges(tasks):
        owners[owner] += (part.stop - part.start) * width_bytes(tasks[number].dtype)
        items += 1
    return items


def location_bits(rate: float) -> float:
    """Entropy of a changed element's place at a change ``rate``, in bits; 0 where all or nothing changes."""
    if not 0 < rate < 1:
        return 0.0
    return -log2(rate) - (1 - rate) / rate * log2(1 - rate)
