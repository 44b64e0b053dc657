"""Several deltas of one tensor as one (DESIGN P14), and the delta that a receiver some versions behind needs.

An overwrite absorbs what came before it; anything after an overwrite is one; masks combine with masks,
differences with differences. A mask and a difference on one element do not combine without its bits:
the later one goes to a further *pass*. Passes are applied in order; within one, no element occurs twice.

Shapes: E entries of one item or pass; locations int64 [E] strictly increasing, values stored bits [E];
N elements of the tensor.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from dcr.codec import Item
from dcr.errors import ConfigError
from dcr.model import Bits, Catalogue, CommitRecord, Encoding, Manifest, bits_dtype
from dcr.transport.base import Archive
from dcr.transport.chain import links
from dcr.transport.replay import checked_items
from dcr.transport.values import combined

_KINDS = (Encoding.OVERWRITE, Encoding.XOR, Encoding.DELTA16)
_SET = 0
_UNTOUCHED = len(_KINDS)
Locations = NDArray[np.int64]
Flags = NDArray[np.bool_]
Kinds = NDArray[np.uint8]


@dataclass(slots=True)
class _Pass:
    """What a further pass does to each of E elements: ``kinds`` [E] are positions in ``_KINDS``."""

    locations: Locations
    kinds: Kinds
    values: Bits

    def find(self, locations: Locations) -> tuple[NDArray[np.intp], Flags]:
        """Where each of ``locations`` is or would be, and whether it is there."""
        at = np.searchsorted(self.locations, locations)
        inside = np.minimum(at, max(self.locations.size - 1, 0))
        held = self.locations[inside] == locations if self.locations.size else np.zeros(at.size, np.bool_)
        return at, held

    def insert(self, locations: Locations, kind: int, values: Bits) -> None:
        """Add elements that are not there; ``locations`` are increasing."""
        at, _ = self.find(locations)
        self.locations = np.insert(self.locations, at, locations)
        self.kinds = np.insert(self.kinds, at, np.uint8(kind))
        self.values = np.insert(self.values, at, values)

    def drop(self, locations: Locations) -> None:
        """Remove those of ``locations`` that are there."""
        at, held = self.find(locations)
        keep = np.ones(self.locations.size, np.bool_)
        keep[at[held]] = False
        self.locations, self.kinds, self.values = self.locations[keep], self.kinds[keep], self.values[keep]


class Composition:
    """The deltas of one tensor so far; at most one pass more than masks and differences alternate.

    The first pass lies dense in memory, a byte and an element's width for each of N: adding costs O(E).
    """

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._name, self._shape, self._dtype = name, shape, dtype
        num_elements = int(np.prod(shape, dtype=np.int64))
        self._kinds = np.full(num_elements, _UNTOUCHED, np.uint8)
        self._values = np.zeros(num_elements, bits_dtype(dtype))
        self._further: list[_Pass] = []

    def add(self, item: Item) -> None:
        """Let ``item`` follow what was added before.

        Raises:
            ConfigError: it is of another tensor.
        """
        if (item.name, tuple(item.shape), item.dtype) != (self._name, self._shape, self._dtype):
            raise ConfigError(f"an item of {item.name} cannot follow those of {self._name}")
        if item.encoding is Encoding.OVERWRITE:
            self._set(item.locations, item.values)
            return
        kind, locations, values = _KINDS.index(item.encoding), item.locations, item.values
        for index in reversed(range(len(self._further))):
            held = self._combine(index, kind, locations, values)
            locations, values = locations[~held], values[~held]
        self._begin(kind, locations, values)

    def passes(self) -> list[list[Item]]:
        """Items of each pass, which are to be applied in this order; nothing where nothing was added."""
        touched = np.flatnonzero(self._kinds != _UNTOUCHED)
        first = self._items(touched, self._kinds[touched], self._values[touched])
        further = [self._items(each.locations, each.kinds, each.values) for each in self._further]
        return [items for items in (first, *further) if items]

    def _items(self, locations: Locations, kinds: Kinds, values: Bits) -> list[Item]:
        found = []
        for kind, encoding in enumerate(_KINDS):
            mine = kinds == kind
            if mine.any():
                at, bits = (locations, values) if mine.all() else (locations[mine], values[mine])
                found.append(Item(self._name, self._shape, self._dtype, encoding, at, bits))
        return found

    def _set(self, locations: Locations, values: Bits) -> None:
        self._kinds[locations], self._values[locations] = _SET, values
        for each in self._further:
            each.drop(locations)
        while self._further and not self._further[-1].locations.size:
            self._further.pop()

    def _begin(self, kind: int, locations: Locations, values: Bits) -> None:
        """Combine with the first pass; elements of which further ones do something are not among these."""
        before = self._kinds[locations]
        fresh, fits = before == _UNTOUCHED, (before == _SET) | (before == kind)
        at = locations[fresh]
        self._kinds[at], self._values[at] = kind, values[fresh]
        at = locations[fits]
        self._values[at] = combined(_KINDS[kind], self._values[at], values[fits])
        self._defer(0, kind, locations, values, ~(fresh | fits))

    def _combine(self, index: int, kind: int, locations: Locations, values: Bits) -> Flags:
        """Combine with what further pass ``index`` does to an element, or go to the next; which it has."""
        each = self._further[index]
        at, held = each.find(locations)
        at, own = at[held], values[held]
        fits = each.kinds[at] == kind
        each.values[at[fits]] = combined(_KINDS[kind], each.values[at[fits]], own[fits])
        self._defer(index + 1, kind, locations[held], own, ~fits)
        return held

    def _defer(self, index: int, kind: int, locations: Locations, values: Bits, which: Flags) -> None:
        """Leave ``which`` of these to further pass ``index``, which does nothing to them yet."""
        if not which.any():
            return
        if index == len(self._further):
            self._further.append(_Pass(np.zeros(0, np.int64), np.zeros(0, np.uint8), values[:0]))
        self._further[index].insert(locations[which], kind, values[which])


def compose(items: Iterable[Item]) -> list[list[Item]]:
    """Passes with the effect of all ``items``, of any tensors, in their order.

    Within a pass the items of a tensor stay together, tensors are in the order of their first item.
    """
    found: dict[str, Composition] = {}
    for item in items:
        if not item.num_entries:
            continue
        if item.name not in found:
            found[item.name] = Composition(item.name, tuple(item.shape), item.dtype)
        found[item.name].add(item)
    alike = zip_longest(*(composition.passes() for composition in found.values()), fillvalue=())
    return [[item for items in each for item in items] for each in alike]


def catch_up(
    archive: Archive, record: CommitRecord, catalogue: Catalogue, *, since: int, names: Collection[str]
) -> list[list[Item]]:
    """The one delta that leads from version ``since`` to ``record``'s, for the tensors with these names.

    Memory: a byte and an element's width for each element of ``names`` that change at all; ask for a
    part of the tensors at a time.

    Raises:
        ConfigError: ``since`` is after ``record``'s version, or no version.
        IntegrityError: a link of the chain is missing or damaged.
        StoreError: the store failed; nothing is lost, try again.
    """
    if not 0 <= since <= record.version:
        raise ConfigError(f"version {since} does not come before version {record.version}")
    return composed(archive, links(archive, record, since), catalogue, names)


def composed(
    archive: Archive,
    manifests: Sequence[Manifest],
    catalogue: Catalogue,
    names: Collection[str],
    keep: Callable[[], None] = lambda: None,
) -> list[list[Item]]:
    """As ``catch_up``, over the given links; ``keep``: before each payload, see ``Archive.reading``."""
    wanted = frozenset(names)

    def found() -> Iterable[Item]:
        for manifest in manifests:
            yield from checked_items(archive, manifest, catalogue, keep)

    return compose(item for item in found() if item.name in wanted)
