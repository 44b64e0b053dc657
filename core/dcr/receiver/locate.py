"""Which elements on which rank are not what they should be, by digests of ever smaller ranges (B6).

No weight leaves its rank: the rank digests ranges, and the other side digests the same ranges of the bits
that the archive proves. Shape legend: N elements of the tensor, E elements of a range.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from dcr.audit import combine, digest_at
from dcr.errors import IntegrityError
from dcr.model import Bits
from dcr.receiver.parts import Division
from dcr.receiver.rank import Cover, PartDigests
from dcr.receiver.writer import Slice

Range: TypeAlias = tuple[int, int]
Scan: TypeAlias = Callable[[Sequence[Slice]], list[PartDigests]]

_SPLIT = 16
_MAX_RANGES = 8
_CHUNK = 1 << 20
"""Elements digested at a time: some 20 bytes of memory each."""


def differing_ranges(
    scan: Scan, name: str, truth: Bits, parts: tuple[Cover, ...], *, key: str
) -> tuple[Range, ...]:
    """Canonical ranges [start, stop) of ``name`` that hold every element of one rank unlike ``truth`` [N].

    ``scan`` is that rank's, ``parts`` is what it holds, in the order of its answers. At most eight
    ranges: where there would be more they stay coarse. A range in which the rank's own copies differ
    from one another is one of them.
    """
    division = Division.of(truth.size, parts)

    def wanted(start: int, stop: int) -> PartDigests:
        index = np.arange(start, stop, dtype=np.int64)
        part, bits = division.part_of(index), truth[start:stop]
        return tuple(digest_at(key, name, index[part == i], bits[part == i]) for i in range(len(parts)))

    def differs(piece: Range) -> bool:
        start, stop = piece
        chunks = [wanted(at, min(at + _CHUNK, stop)) for at in range(start, stop, _CHUNK)]
        whole = tuple(combine(*digests) for digests in zip(*chunks, strict=True))
        try:
            return scan([Slice(name, *piece)]) != [whole]
        except IntegrityError:
            return True

    return _refine(differs, [(0, truth.size)])


def _refine(differs: Callable[[Range], bool], ranges: list[Range]) -> tuple[Range, ...]:
    """Split what lies at the ends of runs of ranges that differ; within a run nothing can be told better.

    So the work does not grow with the elements that are wrong: all of a tensor may be.
    """
    found = [piece for piece in ranges if differs(piece)]
    while ends := _ends(found):
        finer = sorted(
            [piece for piece in found if piece not in ends]
            + [piece for wide in sorted(ends) for piece in _split(wide) if differs(piece)]
        )
        if len(_merged(finer)) > _MAX_RANGES:
            break
        found = finer
    return tuple(_merged(found))


def _ends(found: Sequence[Range]) -> set[Range]:
    """First and last piece of each run of adjacent pieces, of those that can be split."""
    runs = _merged(found)
    first, last = {start for start, _ in runs}, {stop for _, stop in runs}
    return {(a, b) for a, b in found if b - a > 1 and (a in first or b in last)}


def _split(piece: Range) -> list[Range]:
    start, stop = piece
    step = max(1, -(-(stop - start) // _SPLIT))
    return [(at, min(at + step, stop)) for at in range(start, stop, step)]


def _merged(ranges: Sequence[Range]) -> list[Range]:
    merged: list[Range] = []
    for start, stop in ranges:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged
