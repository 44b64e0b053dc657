"""One rank of the toy parallel model as a ``RankPort`` in numpy, apart from every real implementation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dcr import observe
from dcr.audit import EMPTY, digest_at
from dcr.codec import Item, Payload
from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import Bits, Catalogue, Encoding, PathClass, TensorSpec, bits_dtype
from dcr.receiver.parts import Division
from dcr.receiver.rank import (
    Cover,
    ItemKey,
    Method,
    PartDigests,
    Partials,
    PartTable,
    RankPath,
    RankPlacement,
)
from dcr.receiver.writer import ApplyStats, Cancelled, Slice, never
from dcr.testing.toy_parallel import Block, blocks, catalogue
from dcr.transport.values import combined


@dataclass(slots=True)
class Copy:
    """One resident copy: ``bits`` [E] of the canonical elements ``index`` int64 [E], ascending."""

    index: NDArray[np.int64]
    bits: Bits


@dataclass(slots=True)
class ToyRank:
    """Implements ``RankPort``. Tests reach into it.

    ``fails``: method name -> what it raises; ``classes`` and ``refusals`` are what prewarm answers.
    ``generation`` counts rebuilds, ``learned`` is that of the last prewarm.
    """

    rank: int
    num_ranks: int
    copies: dict[str, list[Copy]] = field(init=False)
    fails: dict[str, BaseException] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)
    classes: dict[str, PathClass] = field(default_factory=dict)
    generation: int = 0
    learned: int = -1
    num_prewarms: int = 0
    log: list[str] = field(default_factory=list)
    _parts: dict[str, tuple[Cover, ...]] = field(default_factory=dict)
    _items: dict[ItemKey, Item] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.copies = {}
        for name, held in blocks(self.rank, self.num_ranks).items():
            spec = self.specs[name]
            width = bits_dtype(spec.dtype)
            for block in _distinct_replicas(held):
                index = np.concatenate([_index(spec, part) for part in block])
                junk = np.full(index.size, 0x55, dtype=width)
                self.copies.setdefault(name, []).append(Copy(index, junk))

    @property
    def catalogue(self) -> Catalogue:
        """Of the toy model."""
        return catalogue()

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """By every name."""
        return self.catalogue.by_name()

    def prewarm(self) -> RankPlacement:
        """See ``RankPort``."""
        self._enter("prewarm")
        self.num_prewarms += self.learned != self.generation
        self.learned = self.generation
        held = blocks(self.rank, self.num_ranks)
        paths = {name: self._path(name, held.get(name, ())) for name in self.specs}
        return RankPlacement(paths, {})

    def divide(self, parts: Mapping[str, tuple[Cover, ...]]) -> None:
        """See ``RankPort``."""
        self._parts = dict(parts)

    def rebuilt(self) -> str:
        """See ``RankPort``."""
        return "" if self.learned == self.generation else "resident 'qk' moved"

    def begin(self, *, clean: bool) -> None:
        """See ``RankPort``."""
        del clean
        self._enter("begin")
        if self.rebuilt():
            raise AttemptFailed(self.rebuilt())
        self._items.clear()

    def apply(self, payload: Payload, *, allow_xor: bool = True, cancelled: Cancelled = never) -> ApplyStats:
        """See ``RankPort``."""
        for position, item in enumerate(payload.items):
            if cancelled():
                raise AttemptFailed(f"{item.name}: the attempt was stopped before this item")
            if not allow_xor and item.encoding is not Encoding.OVERWRITE:
                raise AttemptFailed(f"{item.name}: a difference onto torn storage (P8)")
            self._enter("apply")
            self._items[payload.owner, payload.sequence, position] = item
            for copy in self.copies.get(item.name, ()):
                at, entries = _meet(copy.index, item.locations)
                copy.bits[at] = combined(item.encoding, copy.bits[at], item.values[entries])
                observe.point("receiver.item.copy", tensor=item.name)
        return ApplyStats(len(payload.items), 0, 0)

    def synchronize(self) -> None:
        """See ``RankPort``."""
        self._enter("synchronize")

    def check(self) -> Partials:
        """See ``RankPort``."""
        self._enter("check")
        partials: Partials = {}
        for key, item in self._items.items():
            if item.name in self.copies:
                partials[key] = self._digests(item.name, item.locations, AttemptFailed)
        return partials

    def restore(self, tensors: Mapping[str, Bits], *, cancelled: Cancelled = never) -> None:
        """See ``RankPort``."""
        self._enter("restore")
        for name, copies in self.copies.items():
            if cancelled():
                raise AttemptFailed(f"{name}: the restore was stopped before this tensor")
            for copy in copies:
                copy.bits[:] = tensors[name][copy.index]

    def audit(self) -> PartTable:
        """See ``RankPort``."""
        self._enter("audit")
        return {
            name: self._digests(name, np.arange(self.specs[name].num_elements), IntegrityError)
            for name in self.copies
        }

    def scan(self, slices: Sequence[Slice]) -> list[PartDigests]:
        """See ``RankPort``."""
        self._enter("scan")
        return [
            self._digests(name, np.arange(start, stop), IntegrityError) if name in self.copies else ()
            for name, start, stop in slices
        ]

    def rebuild(self) -> None:
        """The same bits in new storage."""
        self.generation += 1

    def _enter(self, method: str) -> None:
        self.log.append(method)
        if method in self.fails:
            raise self.fails[method]

    def _path(self, name: str, held: Sequence[Block]) -> RankPath:
        if name in self.refusals:
            return RankPath(PathClass.REFUSED, Method.NONE, refusal=self.refusals[name])
        if not held:
            return RankPath(PathClass.SKIP, Method.NONE, skipped=name == "head.weight")
        cover = tuple(_box(self.specs[name], block) for block in held)
        return RankPath(self.classes.get(name, PathClass.XOR), Method.LEARNED, cover=cover)

    def _digests(self, name: str, locations: NDArray[np.int64], error: type[Exception]) -> PartDigests:
        """Digest of ``locations`` as held, by part."""
        first, *others = self.copies[name]
        at, entries = _meet(first.index, locations)
        found, bits = locations[entries], first.bits[at]
        for other in others:
            if not np.array_equal(other.bits[_meet(other.index, locations)[0]], bits):
                raise error(f"{name}: two copies differ")
        key, parts = self.catalogue.audit_key, self._parts.get(name, ())
        if len(parts) < 2:
            return (digest_at(key, name, found, bits) if found.size else EMPTY,)
        part = Division.of(self.specs[name].num_elements, parts).part_of(found)
        return tuple(digest_at(key, name, found[part == i], bits[part == i]) for i in range(len(parts)))


def toy_ranks(num_ranks: int) -> list[ToyRank]:
    """All ranks of one instance."""
    return [ToyRank(rank, num_ranks) for rank in range(num_ranks)]


def _distinct_replicas(held: Sequence[Block]) -> list[tuple[Block, ...]]:
    """Blocks that are the same elements again are replicas, others together are one copy."""
    ranges = [(block.rows, block.columns) for block in held]
    return [(block,) for block in held] if len(set(ranges)) < len(ranges) else [tuple(held)]


def _index(spec: TensorSpec, block: Block) -> NDArray[np.int64]:
    columns = spec.shape[-1] if spec.shape else 1
    rows = np.arange(*block.rows, dtype=np.int64)[:, None] * columns
    return (rows + np.arange(*block.columns, dtype=np.int64)).reshape(-1)


def _box(spec: TensorSpec, block: Block) -> tuple[int, tuple[tuple[int, int], ...]]:
    columns = spec.shape[-1] if spec.shape else 1
    (top, bottom), (left, right) = block.rows, block.columns
    if right - left == columns:
        return top * columns, (((bottom - top) * columns, 1),)
    return top * columns + left, ((bottom - top, columns), (right - left, 1))


def _meet(
    index: NDArray[np.int64], locations: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Positions in ``index`` and in ``locations``, both ascending, of what both have."""
    _, at, entries = np.intersect1d(index, locations, assume_unique=True, return_indices=True)
    return at, entries
