"""Whole tensors read back from what a rank holds, in chunks, and proven (DESIGN B6, P8)."""

from collections.abc import Iterator, Mapping

import numpy as np

from dcr.audit import combine
from dcr.errors import IntegrityError
from dcr.model import Bits
from dcr.receiver.digester import Digester
from dcr.receiver.methods import RankMap
from dcr.receiver.rank import PartDigests
from dcr.receiver.scatter.batch import Readback
from dcr.receiver.shadows import Shadows

_CHUNK = 1 << 20
"""Elements read at a time: at most 8 MiB of bits and a byte of flag for each."""


class RankReader:
    """Reads the names that ``rank_map`` maps through it, and the others from their shadows."""

    def __init__(self, rank_map: RankMap, shadows: Shadows) -> None:
        self._map = rank_map
        self._shadows = shadows

    def holds(self, name: str) -> bool:
        """Whether anything of ``name`` lies on this rank."""
        return bool(self._map.paths[name].cover)

    def digest(self, name: str, digester: Digester, start: int, stop: int) -> PartDigests:
        """Digests of what is held of canonical elements start .. stop - 1.

        Raises:
            IntegrityError: two copies differ, or a cast is not the cast of any value.
        """
        found = [digester.range(name, at, got) for at, got in self._chunks(name, start, stop)] or [
            digester.range(name, start, _nothing())
        ]
        return tuple(combine(*parts) for parts in zip(*found, strict=True))

    def unlike(self, tensors: Mapping[str, Bits]) -> list[str]:
        """Mapped names whose storage does not hold what was loaded, bits [num_elements] by primary name."""
        return [name for name in self._map.placed.rows if self._differs(name, tensors)]

    def _differs(self, name: str, tensors: Mapping[str, Bits]) -> bool:
        spec = self._map.table.specs[name]
        loaded = tensors[spec.name]
        try:
            return any(
                not np.array_equal(got.values[got.held], loaded[at : at + got.held.size][got.held])
                for at, got in self._chunks(name, 0, spec.num_elements)
            )
        except IntegrityError:
            return True

    def _chunks(self, name: str, start: int, stop: int) -> Iterator[tuple[int, Readback]]:
        for at in range(start, stop, _CHUNK):
            yield at, self._read(name, at, min(at + _CHUNK, stop))

    def _read(self, name: str, start: int, stop: int) -> Readback:
        if name in self._shadows:
            return self._shadows.read_range(name, start, stop)
        got = self._map.placed.read_range(name, start, stop)
        if got.differs >= 0:
            where = self._map.placed.plan.resident(got.differs)
            raise IntegrityError(
                f"{name}: in elements {start} to {stop - 1} its copy in {where!r} differs from its other "
                "copies, or is the cast of no value"
            )
        return got


def _nothing() -> Readback:
    return Readback(np.zeros(0, dtype=np.uint8), np.zeros(0, dtype=bool), -1)
