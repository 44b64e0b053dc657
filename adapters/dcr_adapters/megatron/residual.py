"""What direct projection cannot do: conversions that the residual path assembles (paper section 5, R5)."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResidualConversion:
    """One conversion whose outputs must be built and compared whole.

    ``key`` names the task on every rank alike; ``inputs`` are global parameter names of which a
    change may alter any of the canonical ``outputs``.
    """

    key: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reason: str


def required_tensors(dirty: Iterable[str], conversions: Iterable[ResidualConversion]) -> tuple[str, ...]:
    """Sorted canonical names that changes of the ``dirty`` parameters may alter, directly or through others.

    A conversion may read what another one writes (a shared scale); so the closure is taken.
    """
    reached, known = set(dirty), tuple(conversions)
    outputs: set[str] = set()
    while True:
        more = {name for each in known if reached & set(each.inputs) for name in each.outputs} - outputs
        if not more:
            return tuple(sorted(outputs))
        outputs |= more
        reached |= more
