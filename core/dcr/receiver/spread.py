"""Items of a payload in groups for an engine: those that need no look one by one, and the rest (B2)."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.receiver.intake import Taken
from dcr.receiver.rank import Method
from dcr.receiver.scatter.batch import Widths
from dcr.receiver.scatter.engine import Engine
from dcr.receiver.scatter.numba_engine import records_of
from dcr.receiver.scatter.placed import PlacedTensors

Group: TypeAlias = tuple[list[int], Callable[[], None]]
"""Positions in the payload, and what writes these items."""


def groups(taken: Taken, placed: PlacedTensors, engine: Engine) -> Iterator[Group]:
    """All LEARNED items with entries; between groups an attempt can be stopped."""
    rest = taken.going(Method.LEARNED) & (taken.columns.nums > 0)
    for widths, plain in taken.plain() if engine.write is not None else ():
        yield from _compiled(taken, widths, plain, (placed, engine))
        rest[plain] = False
    others = np.flatnonzero(rest).tolist()
    for start in range(0, len(others), engine.group):
        group = others[start : start + engine.group]
        items = [taken.payload.items[i] for i in group]
        yield group, partial(placed.scatter, items, engine)


def _compiled(
    taken: Taken, widths: Widths, plain: NDArray[np.intp], into: tuple[PlacedTensors, Engine]
) -> Iterator[Group]:
    placed, engine = into
    assert engine.write is not None, "asked of engines that can"
    records = records_of(taken.columns, taken.rows, taken.actions, plain)
    for start in range(0, plain.size, engine.group):
        part = slice(start, start + engine.group)
        yield plain[part].tolist(), partial(engine.write, placed.plan, records[part], widths)
