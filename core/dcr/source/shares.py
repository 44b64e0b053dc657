"""Shares of equal size: which replica owns which elements, decided locally (DESIGN R1).

Ranks that hold the same shards lay them in one line, in the order of a stable hash of their names,
and cut the line into as many equal parts. Every replica computes the same cuts from its own tasks,
so nothing is exchanged. A line of n parts is cut n - 1 times, so at most n - 1 tensors have more
than one owner.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, runtime_checkable

from dcr.errors import ConfigError
from dcr.model import TensorSpec, bits_dtype
from dcr.source.detect import Candidate
from dcr.source.ownership import owned, stable_hash
from dcr.source.ports import ShardSource
from dcr.source.task import AffineTask

OWNERSHIPS = ("balanced", "published")
"""What ``dcr.config.RefitConfig.ownership`` may be."""
_SMALL = 64
"""A tensor is cut only if it is larger than a 64th of a share, so that small ones stay whole."""
_ALIGN = 1024
"""Ranges begin at multiples of this many elements."""


@dataclass(frozen=True, slots=True)
class Slab:
    """One tensor of the line: what orders it, its number of elements, and bytes of each."""

    order: tuple[int, str, str]
    num_elements: int
    width: int


@dataclass(frozen=True, slots=True)
class Range:
    """Elements ``start .. stop - 1`` of slab ``index`` belong to the ``part``-th owner."""

    index: int
    start: int
    stop: int
    part: int


@runtime_checkable
class RangeSource(Protocol):
    """A ``ShardSource`` that need not convert a whole shard to give a part of it."""

    def read_range(self, task: AffineTask, start: int, stop: int) -> Candidate:
        """As ``ShardSource.read``, elements ``start .. stop - 1`` of the shard."""
        ...


def divide(slabs: Sequence[Slab], num_parts: int) -> list[Range]:
    """Cut the line of ``slabs`` into ``num_parts`` shares; every element is in exactly one range.

    No share exceeds the mean by more than a 64th of it, rounding to ``_ALIGN`` elements apart.
    """
    share = sum(slab.num_elements * slab.width for slab in slabs) / num_parts
    ranges: list[Range] = []
    at = 0
    for index in sorted(range(len(slabs)), key=lambda i: slabs[i].order):
        slab = slabs[index]
        ranges.extend(_ranges(index, slab, at, share, num_parts))
        at += slab.num_elements * slab.width
    return ranges


def slab(task: AffineTask) -> Slab:
    """Where ``task`` stands in the line of those with the same replicas."""
    order = (stable_hash(task.name), task.name, task.key)
    return Slab(order, task.num_elements, bits_dtype(task.dtype).itemsize)


def owned_ranges(tasks: Sequence[AffineTask]) -> Iterator[tuple[int, Range, int]]:
    """Every owned range: the number of its task in ``tasks``, the range, and the rank that owns it."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for number, task in enumerate(tasks):
        groups.setdefault(task.replicas, []).append(number)
    for replicas, numbers in groups.items():
        for cut in divide([slab(tasks[number]) for number in numbers], len(replicas)):
            yield numbers[cut.index], cut, replicas[cut.part]


def balanced(tasks: Sequence[AffineTask], rank: int) -> list[tuple[AffineTask, Range]]:
    """The tasks of which ``rank`` owns a part, and which part, in their given order."""
    found = {number: cut for number, cut, owner in owned_ranges(tasks) if owner == rank}
    return [(tasks[number], found[number]) for number in sorted(found)]


class OwnedShards:
    """The part of ``source`` that ``rank`` owns, as a ``ShardSource`` whose every task is this rank's.

    ``ownership``: ``balanced`` cuts large tensors into index ranges; ``published`` gives each tensor
    whole to the replica that a hash of its name picks (paper section 5).

    Raises:
        ConfigError: another ownership; task keys repeat, or a task is not held by ``rank``.
    """

    def __init__(self, source: ShardSource, rank: int, *, ownership: str = "balanced") -> None:
        if ownership not in OWNERSHIPS:
            raise ConfigError(f"ownership: {ownership!r} is not a choice; accepted: {', '.join(OWNERSHIPS)}")
        self._source = source
        by_name = owned(source.tasks(), rank)  # checks keys and replicas in either case
        if ownership == "published":
            parts: Iterable[tuple[AffineTask, Range]] = [
                (task, Range(0, 0, task.num_elements, 0)) for task in by_name
            ]
        else:
            parts = balanced(source.tasks(), rank)
        self._whole: dict[str, tuple[AffineTask, Range]] = {}
        tasks = []
        for task, part in parts:
            piece = _piece(task, part, rank)
            self._whole[piece.key] = task, part
            tasks.append(piece)
        self._tasks = tuple(tasks)

    def tensors(self) -> tuple[TensorSpec, ...]:
        """See ``ShardSource``."""
        return self._source.tensors()

    def tasks(self) -> Sequence[AffineTask]:
        """One task for each tensor of which this rank owns elements."""
        return self._tasks

    def read(self, task: AffineTask) -> Candidate:
        """See ``ShardSource``; [task.num_elements] of the owned range."""
        whole, part = self._whole[task.key]
        if part.stop - part.start == whole.num_elements:
            return self._source.read(whole)
        if isinstance(self._source, RangeSource):
            return self._source.read_range(whole, part.start, part.stop)
        return self._source.read(whole)[part.start : part.stop]

    def counters(self) -> str:
        """See ``ShardSource``."""
        return self._source.counters()


def _ranges(index: int, slab: Slab, at: int, share: float, num_parts: int) -> list[Range]:
    """The slab at byte ``at`` of the line: whole where its middle lies, or cut at the shares' ends."""
    size = slab.num_elements * slab.width
    if num_parts == 1 or size * _SMALL <= share:
        part = min(num_parts - 1, int((at + size / 2) / share)) if share else 0
        return [Range(index, 0, slab.num_elements, part)]
    first = min(num_parts - 1, int(at / share))
    ends = [0]
    parts = [first]
    for part in range(first + 1, num_parts):
        byte = part * share - at
        if byte >= size:
            break
        cut = round(byte / slab.width / _ALIGN) * _ALIGN
        ends.append(min(max(cut, ends[-1]), slab.num_elements))
        parts.append(part)
    ends.append(slab.num_elements)
    cuts = zip(pairwise(ends), parts, strict=True)
    return _without_slivers([Range(index, start, stop, part) for (start, stop), part in cuts], slab, share)


def _without_slivers(ranges: list[Range], slab: Slab, share: float) -> list[Range]:
    """Give a first or last piece of less than half a 64th of a share to its neighbour; drop empty ones."""
    kept = [piece for piece in ranges if piece.stop > piece.start]
    least = share / (2 * _SMALL)
    if len(kept) > 1 and (kept[0].stop - kept[0].start) * slab.width < least:
        kept[:2] = [replace(kept[1], start=kept[0].start)]
    if len(kept) > 1 and (kept[-1].stop - kept[-1].start) * slab.width < least:
        kept[-2:] = [replace(kept[-2], stop=kept[-1].stop)]
    return kept


def _piece(task: AffineTask, part: Range, rank: int) -> AffineTask:
    if part.stop - part.start == task.num_elements:
        return replace(task, replicas=(rank,))
    return replace(
        task,
        key=f"{task.key}[{part.start}:{part.stop}]",
        num_elements=part.stop - part.start,
        map=task.map.restrict(part.start, part.stop),
        replicas=(rank,),
    )
