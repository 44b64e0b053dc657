"""What direct projection cannot do: tensors that several ranks must make together (paper section 5, R5).

A conversion reads parameters of several ranks (fan-in), or is the framework's own (merged adapters,
quantization scales). Before each transition, in the trainer's own thread, the ranks tell one another
which inputs changed, the framework converts what these may alter, and one rank for each tensor, picked
by a hash of its name, puts the parts together. From there on the tensor is a shard like any other:
compared with its tracker, which is the residual baseline.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dcr.errors import AttemptFailed, ConfigError
from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec, bits_dtype
from dcr.source.ports import ShardSource


@dataclass(frozen=True, slots=True)
class ResidualConversion:
    """One conversion whose outputs must be built and compared whole.

    ``key`` names it on every rank alike; ``inputs`` are global parameter names of which a change may
    alter any of the canonical ``outputs``. An output of one may be an input of another.
    """

    key: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Part:
    """Some elements of canonical tensor ``name``: stored ``bits`` [map.src_size] and where each lies."""

    name: str
    map: IndexMap
    bits: Bits


@runtime_checkable
class ResidualSource(ShardSource, Protocol):
    """A ``ShardSource`` some of whose tensors need residual conversion; ``tasks`` are the direct ones."""

    def conversions(self) -> Sequence[ResidualConversion]:
        """All of them, equal on all ranks; empty if every tensor is direct."""
        ...

    def input_digests(self) -> Mapping[str, str]:
        """Digest of the stored bits of each input that this rank holds a shard of, by global name."""
        ...

    def convert(self, names: Sequence[str]) -> Iterable[Part]:
        """The parts of these canonical tensors that this rank has after conversion.

        All ranks call it with the same names; it may use the training framework's collectives.
        """
        ...


class Exchange(Protocol):
    """Messages between trainer ranks; all of them call it, in the same order."""

    @property
    def rank(self) -> int:
        """This rank."""
        ...

    @property
    def world(self) -> int:
        """Number of ranks."""
        ...

    def route(self, messages: Sequence[bytes]) -> list[bytes]:
        """Send ``messages[r]`` to rank r; returns what each rank sent here."""
        ...


def required_tensors(dirty: Iterable[str], conversions: Iterable[ResidualConversion]) -> tuple[str, ...]:
    """Sorted canonical names that changes of the ``dirty`` inputs may alter, directly or through others.

    A conversion may read what another one writes (a shared scale), so the closure is taken.
    """
    reached, known = set(dirty), tuple(conversions)
    outputs: set[str] = set()
    while True:
        more = {name for each in known if reached & set(each.inputs) for name in each.outputs} - outputs
        if not more:
            return tuple(sorted(outputs))
        outputs |= more
        reached |= more


def assemble(spec: TensorSpec, parts: Iterable[tuple[str, Part]]) -> Bits:
    """The whole tensor [num_elements] from parts, each with the name of who sent it.

    Raises:
        AttemptFailed: a part has another dtype or size, elements are missing, or two parts differ where
            they overlap; names the tensor, the first ranges and the senders.
    """
    whole: Bits = np.zeros(spec.num_elements, dtype=bits_dtype(spec.dtype))
    written = np.zeros(spec.num_elements, dtype=np.bool_)
    for sender, part in parts:
        _check(spec, sender, part)
        near, far = _pairs(part.map)
        again = far[written[far]]
        if again.size:
            here = written[far]
            differs = again[whole[again] != part.bits[near[here]]]
            if differs.size:
                raise AttemptFailed(
                    f"residual tensor {spec.name!r}: {sender} and earlier parts differ at {ranges(differs)}; "
                    "are the replicas of its inputs equal?"
                )
        whole[far] = part.bits[near]
        written[far] = True
    if not written.all():
        raise AttemptFailed(
            f"residual tensor {spec.name!r}: no rank gave elements {ranges(np.flatnonzero(~written))}"
        )
    return whole


def ranges(indices: NDArray[np.int64], most: int = 4) -> str:
    """``indices`` [> 0] in any order as their first ``most`` ranges, for people."""
    ordered = np.unique(indices)
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 2) != 1)
    ends = np.append(starts[1:], ordered.size) - 1
    shown = [f"{ordered[a]}..{ordered[b]}" for a, b in zip(starts[:most], ends[:most], strict=True)]
    return ", ".join(shown) + (f" and {starts.size - most} more" if starts.size > most else "")


def check_conversions(
    conversions: Sequence[ResidualConversion], specs: Mapping[str, TensorSpec], direct: Iterable[str]
) -> tuple[str, ...]:
    """Names of all residual tensors, sorted.

    Raises:
        ConfigError: one is no tensor of the model, or also has direct tasks.
    """
    names = {name for each in conversions for name in each.outputs}
    if unknown := sorted(names - specs.keys()):
        raise ConfigError(f"residual tensors that the model does not have: {', '.join(unknown[:8])}")
    if both := sorted(names & set(direct)):
        raise ConfigError(f"tensors that are both direct and residual: {', '.join(both[:8])}")
    return tuple(sorted(names))


def _check(spec: TensorSpec, sender: str, part: Part) -> None:
    wanted = bits_dtype(spec.dtype)
    fits = part.map.src_size == part.bits.size and part.map.dst_size == spec.num_elements
    if part.bits.dtype != wanted or not fits:
        raise AttemptFailed(
            f"residual tensor {spec.name!r}: {sender} sent {part.bits.dtype} [{part.bits.size}] for "
            f"{part.map.dst_size} elements; it has {wanted} [{spec.num_elements}]"
        )
    if not part.map.is_injective:
        raise AttemptFailed(
            f"residual tensor {spec.name!r}: {sender} sent a part that gives an element twice"
        )


def _pairs(index_map: IndexMap) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sources and destinations of every mapped element."""
    near = np.arange(index_map.src_size, dtype=np.int64)
    far = index_map.to_far(near)
    kept = far >= 0
    return near[kept], far[kept]


def by_owner(parts: Iterable[Part], owner: Mapping[str, int], world: int) -> Iterator[list[Part]]:
    """Parts for each rank in turn. Raises ConfigError on a name that nobody owns."""
    lists: list[list[Part]] = [[] for _ in range(world)]
    for part in parts:
        if part.name not in owner:
            raise ConfigError(f"a conversion gave {part.name!r}, which was not asked for")
        lists[owner[part.name]].append(part)
    yield from lists
