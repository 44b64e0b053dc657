"""Which elements on which rank are not what they should be, by digests of ever smaller ranges (B6).

No weight leaves its rank: the rank digests ranges, and the other side digests the same ranges of the bits
that the archive proves. Shape legend: N elements of the tensor, E elements of a range.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from dcr.audit import EMPTY, digest_at
from dcr.errors import IntegrityError
from dcr.model import Bits
from dcr.receiver.parts import Division
from dcr.receiver.rank import Cover, PartDigests
from dcr.receiver.writer import Slice

Range: TypeAlias = tuple[int, int]
Scan: TypeAlias = Callable[[Sequence[Slice]], list[PartDigests]]

_SPLIT = 16
_MAX_RANGES = 8


def differing_ranges(
    scan: Scan, name: str, truth: Bits, parts: tuple[Cover, ...], *, key: str
) -> tuple[Range, ...]:
    """Canonical ranges [start, stop) of ``name`` that hold every element of one rank unlike ``truth`` [N].

    ``scan`` is that rank's, ``parts`` is what it holds, in the order of its answers. At most eight
    ranges: where there would be more they stay coarse. A range in which the rank's own copies differ
    from one another is one of them.
    """
    division = Division.of(truth.size, parts)

    def differs(piece: Range) -> bool:
        index = np.arange(*piece, dtype=np.int64)
        part, bits = division.part_of(index), truth[piece[0] : piece[1]]
        wanted = tuple(
            digest_at(key, name, index[part == i], bits[part == i]) if (part == i).any() else EMPTY
            for i in range(len(parts))
        )
        try:
            return scan([Slice(name, *piece)]) != [wanted]
        except IntegrityError:
            return True

    return _refine(differs, [(0, truth.size)])


def _refine(differs: Callable[[Range], bool], ranges: list[Range]) -> tuple[Range, ...]:
    found = [piece for piece in ranges if differs(piece)]
    while any(stop - start > 1 for start, stop in found):
        finer = [piece for wide in found for piece in _split(wide) if differs(piece)]
        if len(_merged(finer)) > _MAX_RANGES:
            break
        found = finer
    return tuple(_merged(found))


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
