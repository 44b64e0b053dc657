"""The model of the refit benchmark: random weights under real names, in row shards on its trainer ranks.

Shape legend: N elements of a shard.
"""

from collections.abc import Iterator, Sequence
from math import ceil, prod

import numpy as np

from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec
from dcr.source import AffineTask
from dcr_recipes.bench.apply_model import SHAPES, Shape, shape_of, specs_of
from dcr_recipes.bench.data import Indices, Words, chunks, to_bfloat16, to_float32, weights

_STEP = np.float32(0.01)
_WIDTH_BYTES = 2


def shape_for(gigabytes: float, *, quick: bool) -> Shape:
    """A dense Qwen3 of at least ``gigabytes`` (10^9 bytes) in BF16: as many layers as that takes."""
    if quick:
        return shape_of("dense", quick=True)
    base = SHAPES["dense"]
    sizes = [_num_bytes(_with_layers(base, number)) for number in (1, 2)]
    outer = 2 * sizes[0] - sizes[1]
    return _with_layers(base, max(1, ceil((gigabytes * 1e9 - outer) / (sizes[1] - sizes[0]))))


def _with_layers(shape: Shape, num_layers: int) -> Shape:
    return Shape(
        shape.vocabulary, shape.hidden, shape.ffn, num_layers,
        shape.num_heads, shape.num_kv_heads, shape.head_dim,
    )  # fmt: skip


def _num_bytes(shape: Shape) -> int:
    return sum(spec.num_bytes for spec in specs_of(shape))


class RowShards:
    """``ShardSource`` of trainer rank ``rank`` of ``world``: rows in equal blocks, as FSDP2 has them."""

    def __init__(self, specs: tuple[TensorSpec, ...], rank: int, world: int) -> None:
        self._specs = specs
        self._tasks = tuple(_tasks(specs, rank, world))
        self._words = {
            task.key: _random((rank, number), task.num_elements) for number, task in enumerate(self._tasks)
        }
        self._writes = 0

    def tensors(self) -> tuple[TensorSpec, ...]:
        """See ``ShardSource``."""
        return self._specs

    def tasks(self) -> Sequence[AffineTask]:
        """See ``ShardSource``."""
        return self._tasks

    def read(self, task: AffineTask) -> Bits:
        """See ``ShardSource``; live."""
        return self._words[task.key]

    def counters(self) -> str:
        """Moves with every ``change``."""
        return str(self._writes)

    def change(self, drawn_rate: float, seed: int) -> int:
        """Multiply ``drawn_rate`` of the elements, drawn uniformly, by 1 + 0.01 randn; how many move."""
        moved = 0
        for number, words in enumerate(self._words.values()):
            rng = np.random.default_rng((seed, number))
            where = _positions(rng, words.size, drawn_rate)
            before = words[where]
            factor = np.float32(1) + _STEP * rng.standard_normal(where.size, dtype=np.float32)
            after = to_bfloat16(to_float32(before) * factor)
            words[where] = after
            moved += int(np.count_nonzero(before != after))
        self._writes += 1
        return moved

    def pieces(self, piece_bytes: int) -> Iterator[bytes]:
        """Everything that this rank holds, in pieces, as a checkpoint's files would have it."""
        for words in self._words.values():
            for start in range(0, words.size, piece_bytes // _WIDTH_BYTES):
                yield words[start : start + piece_bytes // _WIDTH_BYTES].tobytes()


def _tasks(specs: tuple[TensorSpec, ...], rank: int, world: int) -> Iterator[AffineTask]:
    for spec in specs:
        per_rank = -(-spec.shape[0] // world)
        first = min(rank * per_rank, spec.shape[0])
        local = (min(per_rank, spec.shape[0] - first), *spec.shape[1:])
        if prod(local):
            block = IndexMap.from_block(local, (first, *(0 for _ in spec.shape[1:])), spec.shape)
            yield AffineTask(spec.name, spec.name, spec.dtype, prod(local), block, (rank,))


def _positions(rng: np.random.Generator, num_elements: int, rate: float) -> Indices:
    """Ascending positions, each element with probability ``rate``, from the gaps between them."""
    spare = 8 * (num_elements * rate) ** 0.5 + 16
    found = np.cumsum(rng.geometric(rate, round(num_elements * rate + spare))) - 1
    return found[: np.searchsorted(found, num_elements)]


def _random(seed: tuple[int, ...], num_elements: int) -> Words:
    words = np.empty(num_elements, np.uint16)
    for start, end in chunks(num_elements):
        words[start:end] = to_bfloat16(weights(np.random.default_rng((*seed, start)), end - start))
    return words
