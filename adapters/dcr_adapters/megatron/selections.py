"""Pieces of traced selections: whole rows of a parameter and an element table."""

import numpy as np

from dcr.indexmap import IndexMap, from_table
from dcr_adapters.megatron.pieces import Piece, Stack, stacked
from dcr_adapters.megatron.probe import Selection


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
        taken = np.flatnonzero(whole).astype(np.int64)
        if not taken.size or not used.size:
            continue
        size = int(np.prod(selection.shape, dtype=np.int64))
        index_map: IndexMap = from_table(selection.table.reshape(rows, -1)[taken].reshape(-1), size)
        full = selection.shape
        if stack is not None:
            index_map, full = stacked(index_map, full, stack)
        together = int(taken[-1] - taken[0]) + 1 == taken.size
        pieces.append(
            Piece(
                name=selection.name,
                shape=full,
                map=index_map,
                first=int(taken[0]),
                rows=None if together else taken,
                split=selection.split,
                plus_one=False,
            )
        )
    return tuple(pieces)
