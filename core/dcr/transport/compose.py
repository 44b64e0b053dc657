"""Several deltas of one tensor as one (DESIGN P14), and the delta that a receiver some versions behind needs.

An overwrite absorbs what came before it; anything after an overwrite is one; masks combine with masks,
differences with differences. A mask and a difference on one element do not combine without its bits:
the later one goes to a further *pass*. Passes are applied in order; within one, no element occurs twice.

Shapes: E entries of one item or pass; locations int64 [E] strictly increasing, values stored bits [E].
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec import Item
from dcr.errors import ConfigError
from dcr.model import Bits, Catalogue, CommitRecord, Encoding, bits_dtype
from dcr.transport.base import Archive
from dcr.transport.chain import chain
from dcr.transport.replay import checked_items
from dcr.transport.values import combined

_KINDS = (Encoding.OVERWRITE, Encoding.XOR, Encoding.DELTA16)
_SET = 0
Locations = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(slots=True)
class _Pass:
    """What happens to each of E elements: ``kinds`` [E] are positions in ``_KINDS``."""

    locations: Locations
    kinds: NDArray[np.uint8]
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
    """The deltas of one tensor so far; at most one pass more than masks and differences alternate."""

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str) -> None:
        self._name, self._shape, self._dtype = name, shape, dtype
        self._passes = [self._empty()]

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
        for index in reversed(range(len(self._passes))):
            held = self._combine(index, kind, locations, values)
            locations, values = locations[~held], values[~held]
        self._passes[0].insert(locations, kind, values)

    def items(self) -> list[Item]:
        """Items to be applied in this order; nothing where nothing was added."""
        found = []
        for each in self._passes:
            for kind, encoding in enumerate(_KINDS):
                mine = each.kinds == kind
                if mine.any():
                    item = Item(self._name, self._shape, self._dtype, encoding,
                                each.locations[mine], each.values[mine])  # fmt: skip
                    found.append(item)
        return found

    def _empty(self) -> _Pass:
        return _Pass(np.zeros(0, np.int64), np.zeros(0, np.uint8), np.zeros(0, bits_dtype(self._dtype)))

    def _set(self, locations: Locations, values: Bits) -> None:
        for each in self._passes:
            each.drop(locations)
        self._passes[0].insert(locations, _SET, values)
        while len(self._passes) > 1 and not self._passes[-1].locations.size:
            self._passes.pop()

    def _combine(self, index: int, kind: int, locations: Locations, values: Bits) -> Flags:
        """Combine with what pass ``index`` does to an element, or go to the next; which elements it has."""
        each = self._passes[index]
        at, held = each.find(locations)
        at, own = at[held], values[held]
        fits = (each.kinds[at] == _SET) | (each.kinds[at] == kind)
        each.values[at[fits]] = combined(_KINDS[kind], each.values[at[fits]], own[fits])
        if not fits.all():
            if index + 1 == len(self._passes):
                self._passes.append(self._empty())
            self._passes[index + 1].insert(locations[held][~fits], kind, own[~fits])
        return held


def compose(items: Iterable[Item]) -> list[Item]:
    """One list of items, of any tensors, with the effect of all ``items`` in their order.

    Items of a tensor stay together, tensors are in the order of their first item.
    """
    found: dict[str, Composition] = {}
    for item in items:
        if item.name not in found:
            found[item.name] = Composition(item.name, tuple(item.shape), item.dtype)
        found[item.name].add(item)
    return [item for composition in found.values() for item in composition.items()]


def apply_composed(items: Iterable[Item], tensors: dict[str, NDArray[Any]]) -> None:
    """Apply ``items`` in place to flat stored bits by name."""
    for item in items:
        bits = tensors[item.name]
        bits[item.locations] = combined(item.encoding, bits[item.locations], item.values)


def catch_up(
    archive: Archive, record: CommitRecord, catalogue: Catalogue, *, since: int, names: Collection[str]
) -> list[Item]:
    """The one delta that leads from version ``since`` to ``record``'s, for the tensors with these names.

    Where an anchor lies after ``since`` it begins there: the anchor overwrites everything. Memory: what
    changed of ``names``, 10 to 17 bytes an element; ask for a part of the tensors at a time.

    Raises:
        ConfigError: ``since`` is after ``record``'s version, or no version.
        IntegrityError: a link of the chain is missing or damaged.
        StoreError: the store failed; nothing is lost, try again.
    """
    if not 0 <= since <= record.version:
        raise ConfigError(f"version {since} does not come before version {record.version}")
    wanted = frozenset(names)
    manifests = [each for each in chain(archive, record) if each.attempt.version > since]
    found = (item for manifest in manifests for item in checked_items(archive, manifest, catalogue))
    return compose(item for item in found if item.name in wanted)
