"""Who holds which elements of a tensor: covers of ranks, divided into parts (DESIGN B6). Free of torch.

Ranks share elements: replicated norms, key and value heads, the replicated part of a fused projection.
The elements of one tensor fall into *parts*, each held by one set of ranks. A part is the unit of a
digest: counted once, and compared between its holders. Shape legend: N elements of the tensor, G
granules of it, E elements given.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd, prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.receiver.rank import Cover

Labels: TypeAlias = NDArray[np.int32]
NOBODY = -1


@dataclass(frozen=True, slots=True)
class Division:
    """The part of each element: ``labels`` int32 [G], one for every ``granule`` elements; NOBODY is -1."""

    granule: int
    labels: Labels

    @classmethod
    def of(cls, num_elements: int, parts: Sequence[Cover]) -> "Division":
        """Division by disjoint ``parts``, numbered in their order."""
        granule = _granule(num_elements, parts)
        labels = np.full(num_elements // granule, NOBODY, dtype=np.int32)
        for number, part in enumerate(parts):
            for box in part:
                labels[_granules(box, granule)] = number
        return cls(granule, labels)

    def part_of(self, indices: NDArray[np.int64]) -> Labels:
        """Part [E] of each canonical flat index int64 [E]."""
        return self.labels[indices // self.granule]


@dataclass(frozen=True, slots=True)
class Parts:
    """How the ranks of an instance hold one tensor.

    ``holders``: of each part, the ranks that hold it, ascending. ``of_rank``: of each rank, its parts
    as covers, in the order of ``numbers`` (positions in ``holders``). ``num_missing``: elements that
    no rank holds.
    """

    holders: tuple[tuple[int, ...], ...]
    numbers: tuple[tuple[int, ...], ...]
    of_rank: tuple[tuple[Cover, ...], ...]
    num_missing: int


@lru_cache(maxsize=4096)
def divide(num_elements: int, covers: tuple[Cover, ...]) -> Parts:
    """Parts of a tensor of which rank r holds ``covers[r]``. Layers repeat, so answers are kept."""
    granule = _granule(num_elements, covers)
    labels = np.zeros(num_elements // granule, dtype=np.int64)
    distinct = sorted({cover for cover in covers if cover})
    held_by: list[frozenset[Cover]] = [frozenset()]
    for cover in distinct:
        inside = np.zeros(labels.size, dtype=np.int64)
        for box in cover:
            inside[_granules(box, granule)] = 1
        labels = labels * 2 + inside
        present = np.bincount(labels, minlength=2 * len(held_by)) > 0
        held_by = [
            held_by[old // 2] | ({cover} if old % 2 else frozenset()) for old in np.flatnonzero(present)
        ]
        labels = (np.cumsum(present) - 1)[labels]
    return _parts(covers, held_by, labels, granule)


def held(cover: Cover, num_elements: int) -> int:
    """How many elements ``cover`` has, each counted once."""
    if len(cover) == 1:
        return prod(size for size, _ in cover[0][1])
    granule = _granule(num_elements, [cover])
    mask = np.zeros(num_elements // granule, dtype=bool)
    for box in cover:
        mask[_granules(box, granule)] = True
    return int(np.count_nonzero(mask)) * granule


def _parts(
    covers: tuple[Cover, ...], held_by: list[frozenset[Cover]], labels: NDArray[np.int64], granule: int
) -> Parts:
    kept = [label for label, holding in enumerate(held_by) if holding]
    numbers = tuple(tuple(i for i, label in enumerate(kept) if cover in held_by[label]) for cover in covers)
    shared = {i for mine in numbers if len(mine) > 1 for i in mine}
    runs = {i: _runs(labels == kept[i], granule) for i in shared}
    of_rank = tuple(
        (cover,) if len(mine) == 1 else tuple(runs[i] for i in mine)
        for cover, mine in zip(covers, numbers, strict=True)
    )
    holders = tuple(tuple(r for r, mine in enumerate(numbers) if i in mine) for i in range(len(kept)))
    return Parts(holders, numbers, of_rank, _missing(held_by, labels) * granule)


def _missing(held_by: list[frozenset[Cover]], labels: NDArray[np.int64]) -> int:
    nobody = [label for label, holding in enumerate(held_by) if not holding]
    return int(np.isin(labels, nobody).sum()) if nobody else 0


def _runs(mask: NDArray[np.bool_], granule: int) -> Cover:
    """Runs of consecutive elements where ``mask`` [G] is set."""
    edges = np.flatnonzero(np.diff(mask.astype(np.int8), prepend=0, append=0)) * granule
    return tuple((int(a), ((int(b - a), 1),)) for a, b in zip(edges[::2], edges[1::2], strict=True))


def _granule(num_elements: int, covers: Sequence[Cover]) -> int:
    """Largest number of elements so that every box is made of whole, aligned granules."""
    granule = max(num_elements, 1)
    for cover in covers:
        for first, dims in cover:
            inner = [size for size, stride in dims if stride == 1 and size > 1]
            granule = gcd(granule, first, inner[0] if len(inner) == 1 else 1)
            granule = gcd(granule, *(stride for size, stride in dims if size > 1 and stride != 1))
    return granule


def _granules(box: tuple[int, tuple[tuple[int, int], ...]], granule: int) -> NDArray[np.int64]:
    """Every granule of ``box``, unsorted."""
    first, dims = box
    index = np.array([first // granule], dtype=np.int64)
    for size, stride in dims:
        if stride == 1 and granule > 1:
            steps = np.arange(size // granule, dtype=np.int64)
        else:
            steps = np.arange(size, dtype=np.int64) * (stride // granule)
        index = (index[:, None] + steps).reshape(-1)
    return index
