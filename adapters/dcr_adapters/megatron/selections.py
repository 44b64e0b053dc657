"""Pieces of traced selections: whole rows of a parameter and an element table."""

from dataclasses import replace

import numpy as np

from dcr.indexmap import Indices, from_table
from dcr_adapters.megatron.pieces import Piece, Stack, stacked, taken
from dcr_adapters.megatron.probe import Selection


def cropped(selection: Selection, num_rows: int) -> Selection:
    """The same without canonical rows from ``num_rows`` on, which are padding as in ``piece_of``."""
    width = int(np.prod(selection.shape[1:], dtype=np.int64))
    table = np.where(selection.table < num_rows * width, selection.table, -1)
    return replace(selection, shape=(min(num_rows, selection.shape[0]), *selection.shape[1:]), table=table)


def pieces_of_selections(
    selections: tuple[Selection, ...], shape: tuple[int, ...], stack: Stack | None
) -> tuple[Piece, ...] | str:
    """One piece a selection, none where it is empty; or why there is none: parts of rows are selected."""
    rows = shape[0] if shape else 1
    pieces = []
    for selection in selections:
        used = (selection.table >= 0).reshape(rows, -1)
        whole = used.all(axis=1)
        if not np.array_equal(whole, used.any(axis=1)):
            return f"{selection.name!r} selects parts of rows"
        if whole.any() and used.size:
            pieces.append(_piece(selection, np.flatnonzero(whole).astype(np.int64), rows, stack))
    return tuple(pieces)


def _piece(selection: Selection, rows: Indices, num_rows: int, stack: Stack | None) -> Piece:
    """The piece that takes ``rows`` [T > 0] of a parameter of ``num_rows``, each of them whole."""
    size = int(np.prod(selection.shape, dtype=np.int64))
    index_map = from_table(selection.table.reshape(num_rows, -1)[rows].reshape(-1), size)
    full = selection.shape
    if stack is not None:
        index_map, full = stacked(index_map, full, stack)
    return Piece(selection.name, full, index_map, *taken(rows), split=selection.split, plus_one=False)
