"""A fused checkpoint of distinct memory, as shards or converted whole (paper section 8.3, Table 3)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

import torch

from dcr import observe
from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec, stored_bits
from dcr.source.ownership import stable_hash
from dcr.source.task import AffineTask
from dcr_recipes.bench.data import Changes, Words, change_of, named_change
from dcr_recipes.bench.fused import Fused, parameters_of
from dcr_recipes.bench.report import Steps

if TYPE_CHECKING:
    from dcr_adapters.megatron.pieces import Piece

_SEED = 11


@dataclass(frozen=True, slots=True, eq=False)
class FusedModel:
    """Shards of all ranks; replicated parameters exist once. ``changes`` [rate] follow ``words``."""

    num_ranks: int
    parameters: tuple[Fused, ...]
    words: tuple[tuple[Words, ...], ...]
    changes: dict[float, list[list[Changes]]]

    @property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Canonical tensors."""
        return tuple(spec for parameter in self.parameters for spec in parameter.specs)

    def shards(self, number: int) -> list[torch.Tensor]:
        """Live shards of the parameter of that ``number``, one a rank, bfloat16."""
        parameter, words = self.parameters[number], self.words[number]
        shape = parameter.local_shape(self.num_ranks)
        return [
            torch.from_numpy(words[rank % len(words)].view("int16")).view(torch.bfloat16).view(shape)
            for rank in range(self.num_ranks)
        ]

    def move_to(self, rate: float) -> None:
        """Make the candidate differ from version 0 by the changes of ``rate``."""
        for words, change in self._pairs(rate):
            words[change.locations] = change.new

    def move_back(self, rate: float) -> None:
        """Make the candidate version 0 again."""
        for words, change in self._pairs(rate):
            words[change.locations] = change.old

    def _pairs(self, rate: float) -> Iterator[tuple[Words, Changes]]:
        for words, changes in zip(self.words, self.changes[rate], strict=True):
            yield from zip(words, changes, strict=True)


def make_model(mib: int, num_ranks: int, rates: Sequence[float], steps: Steps) -> FusedModel:
    """Weights of version 0 and the changes of each rate, padding included; every byte is distinct memory."""
    parameters = parameters_of(mib)
    words: list[tuple[Words, ...]] = []
    changes: dict[float, list[list[Changes]]] = {}
    for rate in rates:
        steps(f"weights and changes of {100 * rate:g}%")
        change = named_change(rate)[1]
        words, changes[rate] = [], []
        for number, parameter in enumerate(parameters):
            size = torch.Size(parameter.local_shape(num_ranks)).numel()
            copies = 1 if parameter.kind == "replicated" else num_ranks
            made = [change_of(change, (_SEED, number, rank), size) for rank in range(copies)]
            words.append(tuple(each for each, _ in made))
            changes[rate].append([found for _, found in made])
    return FusedModel(num_ranks, parameters, tuple(words), changes)


class Projected:
    """Direct projection: one rank's shards under the adapter's maps; a ``RangeSource`` too."""

    def __init__(self, model: FusedModel, rank: int) -> None:
        self._model = model
        self._held: dict[str, tuple[torch.Tensor, Piece]] = {}
        everywhere = tuple(range(model.num_ranks))
        tasks = []
        for number, parameter in enumerate(model.parameters):
            shard = model.shards(number)[rank]
            for piece in parameter.pieces(model.num_ranks, rank):
                key = f"{parameter.name} -> {piece.name}"
                self._held[key] = shard, piece
                spec = next(spec for spec in parameter.specs if spec.name == piece.name)
                tasks.append(_task(key, spec, piece.map, (rank,) if piece.split else everywhere))
        self._tasks = tuple(tasks)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """See ``ShardSource``."""
        return self._model.specs

    def tasks(self) -> Sequence[AffineTask]:
        """One task a parameter and canonical tensor."""
        return self._tasks

    def read(self, task: AffineTask) -> Bits:
        """See ``ShardSource``; a copy only where a tensor's rows do not lie together."""
        return self.read_range(task, 0, task.num_elements)

    def read_range(self, task: AffineTask, start: int, stop: int) -> Bits:
        """See ``RangeSource``."""
        shard, piece = self._held[task.key]
        with observe.span("owner.take", key=task.key):
            return stored_bits(piece.take(shard, start, stop))

    def counters(self) -> str:
        """Nothing counts here."""
        return ""


class FullyConverted:
    """Full conversion: whole canonical tensors, of which a hash of parameter names gives each rank a part.

    A parameter is gathered and converted once, when the first of its tensors is read, and let go with
    the last. A trainer whose collectives leave the result on every rank does this work once a rank.
    """

    def __init__(self, model: FusedModel, rank: int) -> None:
        self._model = model
        self._made: dict[str, torch.Tensor] = {}
        self._number: dict[str, int] = {}
        self._locks: dict[int, Lock] = {}
        tasks = []
        for number, parameter in enumerate(model.parameters):
            if stable_hash(parameter.name) % model.num_ranks != rank:
                continue
            self._locks[number] = Lock()
            for spec in parameter.specs:
                self._number[spec.name] = number
                tasks.append(_task(spec.name, spec, IndexMap.identity(spec.num_elements), (rank,)))
        self._tasks = tuple(tasks)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """See ``ShardSource``."""
        return self._model.specs

    def tasks(self) -> Sequence[AffineTask]:
        """One whole tensor a task."""
        return self._tasks

    def read(self, task: AffineTask) -> Bits:
        """See ``ShardSource``; each tensor is read once a construction."""
        number = self._number[task.name]
        with self._locks[number], observe.span("owner.assemble", key=task.key):
            if task.name not in self._made:
                self._made.update(self._model.parameters[number].convert(self._model.shards(number)))
            return stored_bits(self._made.pop(task.name))

    def counters(self) -> str:
        """Nothing counts here."""
        return ""


def _task(key: str, spec: TensorSpec, index_map: IndexMap, replicas: tuple[int, ...]) -> AffineTask:
    return AffineTask(key, spec.name, spec.dtype, index_map.src_size, index_map, replicas, spec.aliases)
