"""A trainer without a framework: shards of numpy bits, for simulation, property and crash tests.

Shapes: N elements of a canonical tensor; bits are flat unsigned arrays of the element's width.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod
from typing import TypeAlias

import numpy as np

from dcr.errors import ConfigError, UnsupportedPath
from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec, bits_dtype, digest_hex
from dcr.source import AffineTask

Tensors: TypeAlias = dict[str, Bits]
"""Primary canonical name -> flat bits [N]."""


class Placement(StrEnum):
    """How a tensor lies on the ranks: whole on each, in row blocks, or in column blocks (uneven ones too)."""

    REPLICATED = "replicated"
    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class ToyTensor:
    """One canonical tensor and its placement; a tensor of fewer dimensions than that needs is replicated."""

    spec: TensorSpec
    placement: Placement = Placement.REPLICATED

    @property
    def axis(self) -> int | None:
        """The dimension that is split over ranks, or None."""
        axis = {Placement.REPLICATED: None, Placement.ROWS: 0, Placement.COLUMNS: 1}[self.placement]
        return axis if axis is not None and axis < len(self.spec.shape) else None


class ToySource:
    """ShardSource of one rank. Ranks of a toy trainer share nothing; give each the same canonical bits."""

    def __init__(
        self, rank: int, num_ranks: int, tensors: Sequence[ToyTensor], bits: Mapping[str, Bits]
    ) -> None:
        """Cut this rank's shards out of canonical ``bits``.

        Raises:
            ConfigError: the rank is out of range, or bits are missing or of another size or width.
        """
        if not 0 <= rank < num_ranks:
            raise ConfigError(f"rank {rank} is not one of {num_ranks}")
        self._specs = tuple(tensor.spec for tensor in tensors)
        self._tasks = tuple(_tasks(rank, num_ranks, tensors))
        self._shards: dict[str, Bits] = {}
        self._writes = 0
        self.set_all(bits)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """As the port says."""
        return self._specs

    def tasks(self) -> Sequence[AffineTask]:
        """As the port says; empty shards have no task."""
        return self._tasks

    def read(self, task: AffineTask) -> Bits:
        """The live shard, read-only.

        Raises:
            UnsupportedPath: it was replaced by one of another dtype (``set_shard``).
        """
        shard = self._shards[task.key]
        if shard.dtype != bits_dtype(task.dtype):
            raise UnsupportedPath(f"shard {task.key!r} holds {shard.dtype}, its task declares {task.dtype}")
        view = shard.view()
        view.flags.writeable = False
        return view

    def counters(self) -> str:
        """Moves with every ``set``, not with writes through ``set_shard(..., silently=True)``."""
        return digest_hex(str(self._writes).encode())

    def set(self, name: str, bits: Bits) -> None:
        """Write this rank's part of a tensor of ``bits`` [num_elements], as an optimizer step would.

        Raises:
            ConfigError: ``bits`` are not those of the tensor.
        """
        spec = next((spec for spec in self._specs if spec.name == name), None)
        if spec is None:
            raise ConfigError(f"no tensor {name!r}; write tied tensors by their primary name")
        flat = np.ascontiguousarray(bits).reshape(-1)
        if flat.size != spec.num_elements or flat.dtype != bits_dtype(spec.dtype):
            raise ConfigError(
                f"{name!r} has {spec.num_elements} {spec.dtype} elements, got {flat.size} {flat.dtype}"
            )
        for task in self._tasks:
            if task.name == name:
                far = task.map.to_far(np.arange(task.num_elements, dtype=np.int64))
                self._shards[task.key] = flat[far]
        self._writes += 1

    def set_all(self, bits: Mapping[str, Bits]) -> None:
        """Write every tensor.

        Raises:
            ConfigError: one is missing or of another size or width.
        """
        for spec in self._specs:
            if spec.name not in bits:
                raise ConfigError(f"no bits for tensor {spec.name!r}")
            self.set(spec.name, bits[spec.name])

    def set_shard(self, key: str, bits: Bits, *, silently: bool = False) -> None:
        """Replace one shard without any check; ``silently`` leaves the counters, as ``.data`` writes do."""
        self._shards[key] = bits
        self._writes += not silently


def toy_sources(num_ranks: int, tensors: Sequence[ToyTensor], bits: Mapping[str, Bits]) -> list[ToySource]:
    """One source per rank, all from the same canonical bits."""
    return [ToySource(rank, num_ranks, tensors, bits) for rank in range(num_ranks)]


def random_bits(tensors: Sequence[ToyTensor], generator: np.random.Generator) -> Tensors:
    """Uniformly random stored bits: NaNs, infinities, subnormals and both zeros included."""
    return {
        tensor.spec.name: np.frombuffer(
            generator.bytes(tensor.spec.num_bytes), dtype=bits_dtype(tensor.spec.dtype)
        ).copy()
        for tensor in tensors
    }


def mutate(bits: Mapping[str, Bits], rate: float, generator: np.random.Generator) -> Tensors:
    """A copy in which about ``rate`` of all elements, drawn independently, hold other bits."""
    changed: Tensors = {}
    for name, old in bits.items():
        hit = generator.random(old.size) < rate
        masks = generator.integers(1, np.iinfo(old.dtype).max, size=old.size, dtype=old.dtype, endpoint=True)
        changed[name] = np.where(hit, old ^ masks, old).astype(old.dtype)
    return changed


def _tasks(rank: int, num_ranks: int, tensors: Sequence[ToyTensor]) -> Iterator[AffineTask]:
    everyone = tuple(range(num_ranks))
    for tensor in tensors:
        spec, axis = tensor.spec, tensor.axis
        offsets, local = [0] * len(spec.shape), list(spec.shape)
        if axis is not None:
            per_rank = -(-spec.shape[axis] // num_ranks)
            offsets[axis] = min(rank * per_rank, spec.shape[axis])
            local[axis] = min(per_rank, spec.shape[axis] - offsets[axis])
        if axis is not None and not prod(local):
            continue
        yield AffineTask(
            key=spec.name,
            name=spec.name,
            dtype=spec.dtype,
            num_elements=prod(local),
            map=IndexMap.from_block(tuple(local), tuple(offsets), spec.shape),
            replicas=everyone if axis is None else (rank,),
            aliases=spec.aliases,
        )
