"""Audit digests of what was read back, part by part (DESIGN B6). Shape legend: E positions, n of a range."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dcr.audit import EMPTY, combine, digest_at, digest_map, digest_segments
from dcr.codec import Positions
from dcr.indexmap import IndexMap
from dcr.model import AuditDigest, TensorSpec
from dcr.receiver.parts import Division
from dcr.receiver.rank import Cover, PartDigests
from dcr.receiver.scatter.batch import Indices, Listed, Readback
from dcr.receiver.scatter.reader import runs_of

_MANY_RUNS = 64
"""A range with more runs than this is digested position by position."""


@dataclass(frozen=True, slots=True)
class Digester:
    """``divisions``: of tensors that have several parts, the part of each element and how many there are."""

    key: str
    specs: Mapping[str, TensorSpec]
    divisions: Mapping[str, tuple[Division, int]]

    @classmethod
    def of(
        cls, key: str, specs: Mapping[str, TensorSpec], parts: Mapping[str, tuple[Cover, ...]]
    ) -> "Digester":
        """With the parts that ``RankPort.divide`` named."""
        divisions = {
            name: (Division.of(specs[name].num_elements, covers), len(covers))
            for name, covers in parts.items()
        }
        return cls(key, specs, divisions)

    def at(self, name: str, positions: Positions, got: Readback) -> PartDigests:
        """Digests of what is held at positions [E]; ``EMPTY`` where a part has none of them."""
        at = np.asarray(positions, np.int64)
        if name not in self.divisions:
            return (self._at(name, at, got, got.held),)
        division, num_parts = self.divisions[name]
        part = np.where(got.held, division.part_of(at), -1)
        return tuple(self._at(name, at, got, part == i) for i in range(num_parts))

    def listed(self, names: Sequence[str], found: Listed) -> list[PartDigests]:
        """As ``at`` of each of ``names``, whose elements ``found`` lists one after another."""
        whole = digest_segments(self.key, names, found.ends, (found.positions, found.values))
        digests: list[PartDigests] = [(digest,) for digest in whole]
        if self.divisions:
            bounds = pairwise([0, *found.ends.tolist()])
            for i, (name, (start, stop)) in enumerate(zip(names, bounds, strict=True)):
                if name in self.divisions:
                    held = Readback(found.values[start:stop], np.ones(stop - start, dtype=bool), -1)
                    digests[i] = self.at(name, found.positions[start:stop], held)
        return digests

    def range(self, name: str, start: int, got: Readback) -> PartDigests:
        """Digests of what is held of the range [n] that begins at ``start``."""
        if name not in self.divisions:
            return (self._range(name, start, got, got.held),)
        division, num_parts = self.divisions[name]
        part = division.part_of(np.arange(start, start + got.held.size, dtype=np.int64))
        return tuple(self._range(name, start, got, got.held & (part == i)) for i in range(num_parts))

    def _at(self, name: str, positions: Indices, got: Readback, counted: NDArray[np.bool_]) -> AuditDigest:
        if counted.all():
            return digest_at(self.key, name, positions, got.values)
        return digest_at(self.key, name, positions[counted], got.values[counted])

    def _range(self, name: str, start: int, got: Readback, counted: NDArray[np.bool_]) -> AuditDigest:
        runs = runs_of(counted)
        if len(runs) > _MANY_RUNS:
            index = np.flatnonzero(counted)
            return digest_at(self.key, name, index + start, got.values[index])
        size = self.specs[name].num_elements
        parts = [
            digest_map(self.key, name, IndexMap.contiguous(b - a, start + a, size), got.values[a:b])
            for a, b in runs
        ]
        return combine(EMPTY, *parts)
