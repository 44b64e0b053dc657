"""Find the boxes of a map given by its pairs, and chain two maps."""

from dataclasses import dataclass

import numpy as np

from dcr.errors import ConfigError
from dcr.indexmap.box import Box, Dim, nests
from dcr.indexmap.map import IndexMap, Indices


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a box under construction: its first pair and its dimensions, outermost first."""

    src: int
    dst: int
    dims: tuple[Dim, ...]


def boxes_from_pairs(src: Indices, dst: Indices) -> tuple[Box, ...]:
    """Boxes that hold exactly the pairs ``(src[i], dst[i])``, int64 [E] each, src strictly ascending.

    Finds runs, then runs of runs, while that shortens the list: regular layouts become a few
    boxes, arbitrary ones as many as there are runs. O(E) memory.
    """
    pieces = _runs(src, dst)
    while True:
        folded = _fold(pieces)
        if len(folded) == len(pieces):
            return tuple(_box(piece) for piece in pieces)
        pieces = folded


def compose(first: IndexMap, second: IndexMap) -> IndexMap:
    """The map that applies ``first``, then ``second``; cropped by either is cropped.

    Chained unit-stride runs cost nothing; others are enumerated, in O(first.src_size) memory.

    Raises:
        ConfigError: ``second`` does not start where ``first`` ends.
    """
    if first.dst_size != second.src_size:
        raise ConfigError(
            f"cannot chain a map into {first.dst_size} with one from {second.src_size} elements"
        )
    one, two = first.shift, second.shift
    if one is not None and two is not None:
        return IndexMap.contiguous(first.src_size, one + two, second.dst_size)
    src = np.arange(first.src_size, dtype=np.int64)
    mid = first.to_far(src)
    src, mid = src[mid >= 0], mid[mid >= 0]
    far = second.to_far(mid)
    kept = far >= 0
    return IndexMap(boxes_from_pairs(src[kept], far[kept]), first.src_size, second.dst_size)


def _runs(src: Indices, dst: Indices) -> list[_Piece]:
    """Maximal runs of constant step, greedily from the left."""
    if src.size == 0:
        return []
    steps = np.stack([np.diff(src), np.diff(dst)])
    breaks = np.flatnonzero((steps[:, 1:] != steps[:, :-1]).any(axis=0)) + 1
    ends = [*breaks.tolist(), src.size - 1]  # ends[j]: last pair reached by the j-th constant step
    pieces: list[_Piece] = []
    at = 0
    for end in ends:
        if at >= end:  # the step between two runs
            continue
        up = (int(steps[0, at]), int(steps[1, at]))
        if up[1] < 1:  # falling or standing destinations are no box: one pair, then look again
            pieces.extend(_Piece(int(src[i]), int(dst[i]), ()) for i in range(at, end))
            at = end
            continue
        pieces.append(_Piece(int(src[at]), int(dst[at]), ((end - at + 1, *up),)))
        at = end + 1
    if at == src.size - 1:
        pieces.append(_Piece(int(src[at]), int(dst[at]), ()))
    return pieces


def _fold(pieces: list[_Piece]) -> list[_Piece]:
    """Join neighbours of equal dimensions at equal distances into one piece with one more dimension."""
    out: list[_Piece] = []
    at = 0
    while at < len(pieces):
        head, count = pieces[at], 1
        step = (0, 0)
        while at + count < len(pieces) and pieces[at + count].dims == head.dims:
            last, here = pieces[at + count - 1], pieces[at + count]
            here_step = (here.src - last.src, here.dst - last.dst)
            if count == 1:
                step = here_step
            if here_step != step or not _nested(((count + 1, *step), *head.dims)):
                break
            count += 1
        out.append(head if count == 1 else _Piece(head.src, head.dst, ((count, *step), *head.dims)))
        at += count
    return out


def _nested(dims: tuple[Dim, ...]) -> bool:
    shape = tuple(dim[0] for dim in dims)
    return all(nests(shape, tuple(dim[side] for dim in dims)) for side in (1, 2))


def _box(piece: _Piece) -> Box:
    shape, src, dst = (tuple(dim[i] for dim in piece.dims) for i in range(3))
    return Box(shape, piece.src, src, piece.dst, dst)
