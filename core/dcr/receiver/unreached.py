"""Parameters that no canonical tensor reaches: the catalogue or the loader is not this model's (R11)."""

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from dcr.receiver.overlap import Region
from dcr.receiver.storages import Storages
from dcr.receiver.trace import Extent, Kind

_log = logging.getLogger(__name__)


def unreached(regions: Iterable[Region], storages: Storages) -> dict[str, str]:
    """Parameter -> reason, of those into whose bytes nothing but constants is written.

    One of which a part is reached by nothing at all is told of in the log: that part keeps what loading left.
    """
    reached, written = Reach(), Reach()
    for region in regions:
        written.add(region.extent)
        if region.write.kind is not Kind.CONSTANT:
            reached.add(region.extent)
    missing = {}
    for name in storages.parameters:
        extent = storages.extent_of(name)
        if extent is None:
            continue
        if not reached.num_bytes(extent):
            missing[name] = "no canonical tensor reaches this parameter"
        elif left := extent.stop - extent.start - written.num_bytes(extent):
            _log.warning(
                "%s: %d of %d bytes are reached by no canonical tensor and keep what the model was "
                "loaded with; unless they are padding, the catalogue lacks a tensor that is packed there",
                name, left, extent.stop - extent.start,
            )  # fmt: skip
    return missing


class Reach:
    """Which bytes of storages are written, as far as the extents of writes tell."""

    def __init__(self) -> None:
        self._extents: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._merged: dict[int, list[tuple[int, int]]] = {}

    def add(self, extent: Extent) -> None:
        """One write."""
        self._extents[extent.storage].append((extent.start, extent.stop))
        self._merged.pop(extent.storage, None)

    def num_bytes(self, extent: Extent) -> int:
        """How many bytes of ``extent`` some write's extent covers."""
        spans = self._spans(extent.storage)
        first = bisect_right(spans, extent.start, key=lambda span: span[1])
        covered = 0
        for start, stop in spans[first:]:
            if start >= extent.stop:
                break
            covered += min(stop, extent.stop) - max(start, extent.start)
        return covered

    def _spans(self, storage: int) -> list[tuple[int, int]]:
        """Disjoint and ascending."""
        if storage not in self._merged:
            merged: list[tuple[int, int]] = []
            for start, stop in sorted(self._extents.get(storage, [])):
                if merged and start <= merged[-1][1]:
                    merged[-1] = merged[-1][0], max(stop, merged[-1][1])
                else:
                    merged.append((start, stop))
            self._merged[storage] = merged
        return self._merged[storage]
