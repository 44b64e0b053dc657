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

from dcr.codec import Columns, Positions
from dcr.codec.columns import address
from dcr.receiver.scatter import numpy_engine
from dcr.receiver.scatter.batch import Action, Entries, Listed, Readback, Room, Widths, of_width
from dcr.receiver.scatter.plan import Plan

ITEM = np.dtype([(name, "<i8") for name in ("row", "action", "num", "positions", "values", "held", "done")])
"""Row of the plan, Action, entries, and the addresses of their arrays; ``done`` is the answer."""

LEAST = 256
"""Entries of one width below which nothing is compiled."""


def scatter(plan: Plan, batch: Sequence[Entries], *, least: int = LEAST) -> list[int]:
    """Write ``batch``; how many elements of each were written, replicas included."""
    written: list[int] = []
    for widths, group in groupby(batch, key=_widths):
        part = list(group)
        few = sum([entries.positions.size for entries in part]) < least
        written += numpy_engine.scatter(plan, part) if few else _scatter(plan, widths, part)
    return written


def _widths(entries: Entries) -> Widths:
    return Widths(entries.values.itemsize, entries.positions.itemsize)


def write(plan: Plan, records: NDArray[Any], widths: Widths) -> None:
    """Write ``records`` [I] of ITEM, made by ``records_of``, whose arrays have these widths."""
    _compiled().scatter(records, _arrays(plan), _like(widths))


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
    """What storage holds for (row, positions [E])."""
    found: list[Readback] = []
    for widths, group in groupby(batch, key=lambda entry: (int(plan.widths[entry[0]]), entry[1].itemsize)):
        part = list(group)
        if sum(positions.size for _, positions in part) < least:
            found += numpy_engine.read(plan, part)
        else:
            found += _read(plan, Widths(*widths), part)
    return found


def gather(plan: Plan, records: NDArray[Any], widths: Widths, room: Room) -> Listed:
    """List what storage holds of ``records`` [I] of ITEM of these widths; void when ``room`` is used again.

    Values are looked at where an entry is to be SET.
    """
    arrays = room.arrays(int(records["num"].sum()), widths.element)
    ends, wrong = np.zeros(records.size, np.int64), np.zeros(records.size, np.int64)
    _compiled().gather(records, _arrays(plan), arrays, (ends, wrong), _like(widths)[1])
    num = int(ends[-1])
    return Listed(arrays[0][:num], arrays[1][:num], ends, records["done"].tolist(), wrong.tolist())


def records_of_entries(batch: Sequence[Entries], kept: list[NDArray[Any]]) -> NDArray[Any]:
    """Records [len(batch)] of ITEM; arrays that had to be copied are added to ``kept``."""
    cells: list[int] = []
    for row, action, positions, values in batch:
        cells += (row, action, positions.size, address(positions, kept), address(values, kept), 0, 0)
    return np.array(cells, dtype=np.int64).view(ITEM)


def _scatter(plan: Plan, widths: Widths, batch: Sequence[Entries]) -> list[int]:
    kept: list[NDArray[Any]] = []
    records = records_of_entries(batch, kept)
    write(plan, records, widths)
    done: list[int] = records["done"].tolist()
    return done


def _read(plan: Plan, widths: Widths, batch: list[tuple[int, Positions]]) -> list[Readback]:
    kept: list[NDArray[Any]] = []
    cells: list[int] = []
    bits = of_width(widths.element)
    found = [(np.zeros(positions.size, bits), np.zeros(positions.size, bool)) for _, positions in batch]
    for (row, positions), (values, held) in zip(batch, found, strict=True):
        cells += (row, Action.READ, positions.size, address(positions, kept))
        cells += (address(values, kept), address(held, kept), 0)
    items = np.array(cells, dtype=np.int64).view(ITEM)
    _compiled().read(items, _arrays(plan), _like(widths), np.empty(0, bool))
    return [
        Readback(values, held, done)
        for (values, held), done in zip(found, items["done"].tolist(), strict=True)
    ]


def _like(widths: Widths) -> tuple[NDArray[Any], NDArray[Any]]:
    """Empty arrays of the types of elements and of positions, for which loops are compiled."""
    return np.empty(0, of_width(widths.element)), np.empty(0, f"<i{widths.position}")


def _arrays(plan: Plan) -> tuple[NDArray[Any], ...]:
    return plan.first_box, plan.boxes, plan.dims, plan.table


def _compiled() -> ModuleType:
    return import_module("dcr.receiver.scatter.compiled")
