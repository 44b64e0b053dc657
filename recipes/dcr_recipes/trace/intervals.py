"""Unions of time intervals: what several operations cover together, overlaps counted once."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple


class Interval(NamedTuple):
    """From ``start`` to ``end``, in nanoseconds of one clock."""

    start: int
    end: int

    def clip(self, window: "Interval") -> "Interval":
        """The part inside ``window``; it ends before it starts if there is none."""
        return Interval(max(self.start, window.start), min(self.end, window.end))

    def holds(self, other: "Interval") -> bool:
        """Whether ``other`` lies inside."""
        return self.start <= other.start and other.end <= self.end


def covered_ns(intervals: Iterable[Interval], window: Interval) -> int:
    """Nanoseconds of ``window`` that at least one interval covers.

    >>> covered_ns([Interval(0, 4), Interval(3, 6), Interval(8, 99)], Interval(2, 10))
    6
    """
    total, reached = 0, window.start
    for start, end in sorted(each.clip(window) for each in intervals):
        if end > max(start, reached):
            total += end - max(start, reached)
            reached = end
    return total


def busiest_ns(by_party: Mapping[str, Iterable[Interval]], window: Interval) -> int:
    """The longest union of any one party's intervals inside ``window``; 0 without parties.

    >>> busiest_ns({"a": [Interval(0, 4)], "b": [Interval(1, 3), Interval(5, 8)]}, Interval(0, 10))
    5
    """
    return max((covered_ns(intervals, window) for intervals in by_party.values()), default=0)


def saved_ns(by_party: Mapping[str, Iterable[Interval]], window: Interval) -> int:
    """By how much the last interval's end inside ``window`` would be earlier, had no party any of them.

    Parties go on beside one another: what one does while another is busy otherwise saves nothing.

    >>> saved_ns({"a": [Interval(2, 8)], "b": [Interval(8, 9)]}, Interval(0, 10))
    1
    """
    last, without = window.start, window.start
    for intervals in by_party.values():
        inside = [part for part in (each.clip(window) for each in intervals) if part.end > part.start]
        if inside:
            end = max(part.end for part in inside)
            last, without = max(last, end), max(without, end - covered_ns(inside, window))
    return last - without
