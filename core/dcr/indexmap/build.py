"""Find the boxes of a map given by its pairs, and chain two maps."""

from dataclasses import dataclass
from math import gcd

import numpy as np

from dcr.errors import ConfigError
from dcr.indexmap.box import Box, Dim, Indices, nests
from dcr.indexmap.map import IndexMap


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


def from_table(table: Indices, dst_size: int) -> IndexMap:
    """The map given element by element: ``table[i]`` is the destination of source i, -1 where cropped."""
    src = np.flatnonzero(table >= 0).astype(np.int64)
    return IndexMap(boxes_from_pairs(src, table[src]), table.size, dst_size)


def from_rows(
    rows: Indices,
    width: int,
    dst_shape: tuple[int, int],
    *,
    column: int = 0,
    transposed: bool = False,
) -> IndexMap:
    """Map of a row-major matrix [rows.size, width] given by where its rows go.

    Element (i, j) goes to (``rows[i]``, ``column + j``) of a matrix ``dst_shape``, which is stored
    row-major, or, if ``transposed``, as its row-major transpose. Rows of -1 are cropped.

    Raises:
        ConfigError: a row or the columns leave ``dst_shape``.
    """
    num_rows, num_columns = dst_shape
    if column < 0 or column + width > num_columns or (rows.size and int(rows.max()) >= num_rows):
        raise ConfigError(f"rows of {width} elements at column {column} leave a matrix of shape {dst_shape}")
    row_step, column_step = (1, num_rows) if transposed else (num_columns, 1)
    kept = np.flatnonzero(rows >= 0).astype(np.int64)
    boxes = tuple(
        Box(
            (*box.shape, width),
            box.src_offset * width,
            (*(stride * width for stride in box.src_strides), 1),
            box.dst_offset * row_step + column * column_step,
            (*(stride * row_step for stride in box.dst_strides), column_step),
        )
        for box in (boxes_from_pairs(kept, rows[kept]) if width else ())
    )
    return IndexMap(boxes, rows.size * width, num_rows * num_columns)


def compose(first: IndexMap, second: IndexMap) -> IndexMap:
    """The map that applies ``first``, then ``second``; cropped by either is cropped.

    Both are seen in blocks that neither tears apart, rows of a matrix for instance, and the blocks
    are enumerated: O(first.src_size / block) memory. Unit-stride runs cost nothing.

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
    block = gcd(_block(first), _block(second)) or 1
    first, second = (_in_blocks(each, block) for each in (first, second))
    src = np.arange(first.src_size, dtype=np.int64)
    mid = first.to_far(src)
    src, mid = src[mid >= 0], mid[mid >= 0]
    far = second.to_far(mid)
    kept = far >= 0
    boxes = tuple(_grown(box, block) for box in boxes_from_pairs(src[kept], far[kept]))
    return IndexMap(boxes, first.src_size * block, second.dst_size * block)


def _block(index_map: IndexMap) -> int:
    """Largest b such that aligned blocks of b sources stay together, in order and aligned, or are cropped."""
    found = gcd(index_map.src_size, index_map.dst_size)
    for box in index_map.boxes:
        if not box.shape or (box.src_strides[-1], box.dst_strides[-1]) != (1, 1):
            return 1
        found = gcd(found, box.shape[-1], box.src_offset, box.dst_offset)
        found = gcd(found, *box.src_strides[:-1], *box.dst_strides[:-1])
    return found


def _in_blocks(index_map: IndexMap, block: int) -> IndexMap:
    """The map between blocks; ``block`` divides ``_block(index_map)``."""
    if block == 1:
        return index_map
    boxes = tuple(
        Box(
            (*box.shape[:-1], box.shape[-1] // block),
            box.src_offset // block,
            (*(stride // block for stride in box.src_strides[:-1]), 1),
            box.dst_offset // block,
            (*(stride // block for stride in box.dst_strides[:-1]), 1),
        )
        for box in index_map.boxes
    )
    return IndexMap(boxes, index_map.src_size // block, index_map.dst_size // block)


def _grown(box: Box, block: int) -> Box:
    src, dst = (tuple(stride * block for stride in strides) for strides in (box.src_strides, box.dst_strides))
    return Box((*box.shape, block), box.src_offset * block, (*src, 1), box.dst_offset * block, (*dst, 1))


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
