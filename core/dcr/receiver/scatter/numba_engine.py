"""Scatter and read back with compiled loops: one call for all items of a batch, without the interpreter.

For storages in host memory. Several ranks in one process may run it in threads of their own. A width of
which a batch has little goes through numpy: a counter of eight bytes is not worth two seconds of compiling.
"""

from collections.abc import Sequence
from importlib import import_module
from itertools import groupby
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec.columns import Columns, address
from dcr.receiver.scatter import numpy_engine
from dcr.receiver.scatter.batch import Action, Entries, Listed, Positions, Readback, Room, of_width
from dcr.receiver.scatter.plan import Plan

ITEM = np.dtype([(name, "<i8") for name in ("row", "action", "num", "positions", "values", "held", "done")])
"""Row of the plan, Action, entries, and the addresses of their arrays; ``done`` is the answer."""

LEAST = 256
"""Entries of one width below which nothing is compiled."""


def scatter(plan: Plan, batch: Sequence[Entries], *, least: int = LEAST) -> list[int]:
    """Write ``batch``; how many elements of each were written, replicas included."""
    widths = {entries.values.itemsize for entries in batch}
    if len(widths) > 1:
        groups = groupby(batch, key=lambda entries: entries.values.itemsize)
        return [number for _, group in groups for number in scatter(plan, list(group), least=least)]
    if sum([entries.positions.size for entries in batch]) < least:
        return numpy_engine.scatter(plan, batch)
    return _scatter(plan, of_width(widths.pop()), batch) if batch else []


def write(plan: Plan, records: NDArray[Any], width_bytes: int) -> None:
    """Write ``records`` [I] of ITEM, made by ``records_of``, whose rows and values have that width."""
    _compiled().scatter(records, _arrays(plan), np.empty(0, of_width(width_bytes)))


def records_of(
    columns: Columns, rows: NDArray[np.int64], actions: NDArray[np.int64], chosen: NDArray[np.intp]
) -> NDArray[Any]:
    """Records [I] of ITEM of the ``chosen`` [I] items of a payload, which must outlive them.

    ``rows`` and ``actions`` [items of the payload]: the plan's row and what to do, for each item.
    """
    records = np.zeros(chosen.size, dtype=ITEM)
    records["row"], records["action"] = rows[chosen], actions[chosen]
    records["num"] = columns.nums[chosen]
    records["positions"], records["values"] = columns.positions[chosen], columns.values[chosen]
    return records


def read(plan: Plan, batch: Sequence[tuple[int, Positions]], *, least: int = LEAST) -> list[Readback]:
    """What storage holds for (row, positions int64 [E])."""
    found: list[Readback] = []
    for width, group in groupby(batch, key=lambda entry: int(plan.widths[entry[0]])):
        part = list(group)
        if sum(positions.size for _, positions in part) < least:
            found += numpy_engine.read(plan, part)
        else:
            found += _read(plan, of_width(width), part)
    return found


def gather(plan: Plan, records: NDArray[Any], width_bytes: int, room: Room) -> Listed:
    """List what storage holds of ``records`` [I] of ITEM of one width; void when ``room`` is used again.

    Values are looked at where an entry is to be SET.
    """
    arrays = room.arrays(int(records["num"].sum()), width_bytes)
    ends, wrong = np.zeros(records.size, np.int64), np.zeros(records.size, np.int64)
    _compiled().gather(records, _arrays(plan), arrays, ends, wrong)
    num = int(ends[-1])
    return Listed(arrays[0][:num], arrays[1][:num], ends, records["done"].tolist(), wrong.tolist())


def records_of_entries(batch: Sequence[Entries], kept: list[NDArray[Any]]) -> NDArray[Any]:
    """Records [len(batch)] of ITEM; arrays that had to be copied are added to ``kept``."""
    cells: list[int] = []
    for row, action, positions, values in batch:
        cells += (row, action, positions.size, address(positions, kept), address(values, kept), 0, 0)
    return np.array(cells, dtype=np.int64).view(ITEM)


def _scatter(plan: Plan, bits: np.dtype[Any], batch: Sequence[Entries]) -> list[int]:
    kept: list[NDArray[Any]] = []
    records = records_of_entries(batch, kept)
    write(plan, records, bits.itemsize)
    done: list[int] = records["done"].tolist()
    return done


def _read(plan: Plan, bits: np.dtype[Any], batch: list[tuple[int, Positions]]) -> list[Readback]:
    kept: list[NDArray[Any]] = []
    cells: list[int] = []
    found = [(np.zeros(positions.size, bits), np.zeros(positions.size, bool)) for _, positions in batch]
    for (row, positions), (values, held) in zip(batch, found, strict=True):
        cells += (row, Action.READ, positions.size, address(positions, kept))
        cells += (address(values, kept), address(held, kept), 0)
    items = np.array(cells, dtype=np.int64).view(ITEM)
    _compiled().read(items, _arrays(plan), np.empty(0, bits), np.empty(0, bool))
    return [
        Readback(values, held, done)
        for (values, held), done in zip(found, items["done"].tolist(), strict=True)
    ]


def _arrays(plan: Plan) -> tuple[NDArray[Any], ...]:
    return plan.first_box, plan.boxes, plan.dims, plan.table


def _compiled() -> ModuleType:
    return import_module("dcr.receiver.scatter.compiled")
