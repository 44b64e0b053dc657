"""Tensors that a loader cannot place one at a time: what it reads back and computes (DESIGN R11, B2).

Resident bytes that are read and that no weight reaches are a *guard*: the map holds while they hold. Bytes
that a weight does reach make the reader depend on that weight: both go *together*, whole, through the
plain loader. So do all tensors of which one written value is made.
"""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate

from dcr.receiver.trace import Extent, Kind, Traces


@dataclass(slots=True)
class Links:
    """``reasons``: name -> why it must be loaded whole. ``guards``: bytes that the map depends on."""

    guards: set[Extent] = field(default_factory=set)
    reasons: dict[str, str] = field(default_factory=dict)
    _parent: dict[str, str] = field(default_factory=dict)

    def join(self, names: frozenset[str], reason: str) -> None:
        """These names are loaded whole, and together; "" stands for no tensor."""
        members = sorted(names - {""})
        for name in members:
            self.reasons.setdefault(name, reason)
            self._parent[self.root(name)] = self.root(members[0])

    def root(self, name: str) -> str:
        """The same for all names that are loaded together."""
        while (parent := self._parent.get(name, name)) != name:
            name = parent
        return name

    def together(self) -> dict[str, tuple[str, ...]]:
        """Name -> every name that is loaded together with it, itself included."""
        groups: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.reasons):
            groups[self.root(name)].append(name)
        return {name: tuple(group) for group in groups.values() for name in group}


def find_links(traces: Traces) -> Links:
    """Follow reads and computed writes; see the module. Writes that belong to no tensor get an owner."""
    links = Links()
    writers = _Writers(traces)
    for name, trace in traces.items():
        for write in trace.writes:
            if write.kind is Kind.COMPUTED:
                reason = trace.undecided or f"composed: {write.what} stores what was computed from it"
                links.join(write.names | {name}, reason)
    for name, trace in traces.items():
        for extent in trace.reads:
            if found := writers.into(extent):
                reason = f"the loader reads {_shown(found)} back from resident storage while loading"
                links.join(found | {name}, reason)
            else:
                links.guards.add(extent)
    _adopt(traces, writers)
    return links


def _adopt(traces: Traces, writers: "_Writers") -> None:
    """Give what is computed after the last tensor (a post-load step, say) to a tensor that it is made of."""
    kept = []
    for write in traces[""].writes:
        owners = write.names.union(*(writers.into(extent) for extent in write.reads))
        if write.kind is Kind.COMPUTED and owners:
            traces[min(owners)].writes.append(write)
        else:
            kept.append(write)
    traces[""].writes = kept


def _shown(names: frozenset[str]) -> str:
    first, *more = sorted(names)
    return f"{first} and {len(more)} more tensors" if more else first


class _Writers:
    """Names by the bytes that they reach."""

    def __init__(self, traces: Traces) -> None:
        by_storage: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
        if any(trace.reads for trace in traces.values()):
            for name, trace in traces.items():
                for write in trace.writes:
                    if name and write.kind is not Kind.CONSTANT:
                        storage, start, stop = write.extent
                        by_storage[storage].append((start, stop, name))
        self._sorted = {storage: sorted(found) for storage, found in by_storage.items()}
        self._ends = {s: list(accumulate((stop for _, stop, _ in f), max)) for s, f in self._sorted.items()}

    def into(self, extent: Extent) -> frozenset[str]:
        """Names with a write whose extent meets ``extent``."""
        found = self._sorted.get(extent.storage, [])
        last = bisect_left(found, (extent.stop,))
        names = set()
        while last > 0 and self._ends[extent.storage][last - 1] > extent.start:
            last -= 1
            _, stop, name = found[last]
            if stop > extent.start:
                names.add(name)
        return frozenset(names)
