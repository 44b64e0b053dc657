"""The loops of ``numba_engine``; imported when needed, compiled for each pair of widths, kept on disk.

Records are those of ``plan`` and of ``numba_engine.ITEM``. An index computed from a position is compared
with the sizes of its box before it is used, and a box lies within its storage (``compile_plan``): what
an item says never decides whether a write stays inside. All indices are unsigned, which spares numba's
wrap of negative ones. Positions are resolved in blocks that stay in the second-level cache, so that
reading and writing storage is a bare loop whose misses overlap.

Numba does not see that an imported loop has changed: touch this file then (the tests do).

``spot`` is a box with the dimensions of all boxes, ``work`` what ``_work`` makes; ``like`` and ``index`` are
empty and have the types of elements and of positions. Shape legend: E entries.
"""

from importlib import import_module
from typing import Any

import numpy as np

from dcr.receiver.scatter import runs, walk
from dcr.receiver.scatter.addresses import kept, pointer
from dcr.receiver.scatter.vectors import fetch

carray: Any = import_module("numba").carray  # its types do not say what it exports

_U = np.uint64
_BLOCK = 4096
"""Positions resolved at once: writes wait for memory, and small stores between them would wait with them."""
_MANY = 24
"""Positions a row from which it is quicker to go row by row: where it ends is guessed wrong once a row."""
_FAR = 1 << 48
_MORE = 1 + 2.0**-50
"""Errors of a quotient below 2^48 in double precision are less, and together make less than one."""
_SET, _XOR, _ADD = 0, 1, 2


@kept
def _work() -> Any:
    """Offsets of a block, which of its positions they belong to; room for offsets and what lies inside."""
    return (
        np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint16),
        np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint8),
    )  # fmt: skip


@kept
def _run(positions: Any, spot: Any, work: Any) -> Any:
    """Resolve a block of positions in a box of consecutive elements; how many lie in it."""
    box, dims = spot
    offsets, taken, _, _ = work
    first, offset = _U(box.src), _U(box.dst)
    size, step = _U(dims[box.dim].size), _U(dims[box.dim].dst)
    count = _U(0)
    for i in range(_U(positions.size)):
        at = _U(positions[i]) - first
        offsets[count] = offset + at * step
        taken[count] = i
        count += _U(at < size)
    return count


@kept
def _rows(positions: Any, spot: Any, work: Any) -> Any:
    """The same in a box of two dimensions, in two loops: the first has no branches and becomes vectors.

    Rows come from a product with the inverse of their pitch, a little too large, so that the quotient is
    right or one too many. To divide, or to guess where a row ends, would take twice the time.
    """
    box, dims = spot
    offsets, taken, all_offsets, inside = work
    outer, inner = dims[box.dim], dims[box.dim + 1]
    first, offset, pitch = np.int64(box.src), _U(box.dst), np.int64(outer.src)
    num_rows, row_step = _U(outer.size), _U(outer.dst)
    stride, size, step = _U(inner.src), _U(inner.size), _U(inner.dst)
    inverse, count = _MORE / np.float64(pitch), _U(0)
    for i in range(_U(positions.size)):
        at = np.int64(positions[i]) - first
        row = np.int64(np.float64(at) * inverse)
        at -= row * pitch
        over = np.int64(at < 0)
        row -= over
        at += over * pitch
        column = _U(at) if stride == 1 else _U(at) // stride
        all_offsets[i] = offset + _U(row) * row_step + column * step
        inside[i] = (column < size) & (_U(row) < num_rows) & (column * stride == _U(at))
    for i in range(_U(positions.size)):
        offsets[count] = all_offsets[i]
        taken[count] = i
        count += _U(inside[i])
    return count


@kept
def _any(positions: Any, spot: Any, work: Any) -> Any:
    """The same in any box."""
    box, dims = spot
    offsets, taken, _, _ = work
    count = _U(0)
    for i in range(_U(positions.size)):
        at, offset, inside = _U(positions[i]) - _U(box.src), _U(box.dst), _U(1)
        for d in range(_U(box.dim), _U(box.dim + box.rank)):
            steps = at // _U(dims[d].src)
            at -= steps * _U(dims[d].src)
            inside &= _U(steps < _U(dims[d].size))
            offset += steps * _U(dims[d].dst)
        offsets[count] = offset
        taken[count] = i
        count += inside & _U(at == 0)
    return count


@kept
def _resolve(positions: Any, spot: Any, work: Any) -> Any:
    box, dims = spot
    if box.rank == 1 and dims[box.dim].src == 1:
        return _run(positions, spot, work)
    if box.rank == 2 and box.last - box.src < _FAR:
        return _rows(positions, spot, work)
    return _any(positions, spot, work)


@kept
def _put(resident: Any, values: Any, offsets: Any, taken: Any, action: Any) -> None:
    if action == _SET:
        for j in range(_U(offsets.size)):
            resident[offsets[j]] = values[_U(taken[j])]
    elif action == _XOR:
        for j in range(_U(offsets.size)):
            resident[offsets[j]] ^= values[_U(taken[j])]
    elif action == _ADD:
        for j in range(_U(offsets.size)):
            resident[offsets[j]] += values[_U(taken[j])]


@kept
def _set_rows(resident: Any, positions: Any, values: Any, spot: Any) -> Any:
    """Positions of rows of neighbours, row by row: where a row ends is found by looking; how many lie inside.

    Not for changes that are combined with what is there: those wait for memory where a guess was wrong.
    """
    box, dims = spot
    outer, inner = dims[box.dim], dims[box.dim + 1]
    pitch, num_rows, row_step = _U(outer.src), _U(outer.size), _U(outer.dst)
    size, step = _U(inner.size), _U(inner.dst)
    i, num, count = _U(0), _U(positions.size), _U(0)
    while i < num:
        row = (_U(positions[i]) - _U(box.src)) // pitch
        if row >= num_rows:
            i += _U(1)
            continue
        start, offset, since = _U(box.src) + row * pitch, _U(box.dst) + row * row_step, i
        while i < num and _U(positions[i]) - start < size:
            resident[offset + (_U(positions[i]) - start) * step] = values[i]
            i += _U(1)
        count += i - since
        while i < num and size <= _U(positions[i]) - start < pitch:
            i += _U(1)
    return count


@kept
def _is_of_rows(spot: Any) -> Any:
    """Whether it is a box of rows of neighbours."""
    box, dims = spot
    return box.rank == 2 and dims[box.dim + 1].src == 1


@kept
def _is_crowded(positions: Any, spot: Any) -> Any:
    """Whether it is one with many positions a row."""
    box, dims = spot
    return _is_of_rows(spot) and positions.size >= _MANY * dims[box.dim].size


@kept
def _put_box(resident: Any, positions: Any, values: Any, action: Any, spot: Any, work: Any) -> Any:
    """Write what lies in one box; how many elements."""
    box, dims = spot
    if box.rank == 1 and dims[box.dim].src == 1 and dims[box.dim].dst == 1:
        run, way = resident[box.dst : box.dst + dims[box.dim].size], runs.way(positions, box)
        if action == _SET:
            return runs.set_run(run, positions, values, _U(box.src), way)
        if action == _XOR:
            return runs.xor_run(run, positions, values, _U(box.src), way)
        return runs.add_run(run, positions, values, _U(box.src), way)
    low, high = _span(positions, box)
    positions, values = positions[low:high], values[low:high]
    if action == _SET and _is_crowded(positions, spot):
        return _set_rows(resident, positions, values, spot)
    if (
        action == _SET
        and positions.size >= walk.GROUP
        and _is_of_rows(spot)
        and box.last - box.src < walk.FAR
    ):
        return walk.set_rows(resident, positions, values, spot)
    offsets, taken, _, _ = work
    total = _U(0)
    for start in range(0, positions.size, _BLOCK):
        count = _resolve(positions[start : start + _BLOCK], spot, work)
        _put(resident, values[start : start + _BLOCK], offsets[:count], taken, action)
        total += count
    return total


@kept
def _get_box(resident: Any, positions: Any, found: Any, spot: Any, work: Any) -> Any:
    """Read into values where nothing is held yet; how many held ones the storage contradicts."""
    values, held = found
    offsets, taken, _, _ = work
    wrong = _U(0)
    for start in range(0, positions.size, _BLOCK):
        count = _resolve(positions[start : start + _BLOCK], spot, work)
        for j in range(count):
            i, got = _U(start) + _U(taken[j]), resident[offsets[j]]
            if held[i]:
                wrong += _U(values[i] != got)
            else:
                values[i] = got
                held[i] = True
    return wrong


@kept
def _list_run(resident: Any, positions: Any, found: Any, first: Any) -> Any:
    """As ``_list_box`` of a run that is stored as a run."""
    listed, values = found
    count, size = _U(0), _U(resident.size)
    for i in range(_U(positions.size)):
        at = _U(positions[i]) - first
        if at < size:
            listed[count], values[count] = positions[i], resident[at]
            count += _U(1)
    return count


@kept
def _list_box(resident: Any, positions: Any, found: Any, spot: Any, work: Any) -> Any:
    """List the positions that lie in the box and what it holds there; how many they are."""
    box, dims = spot
    if box.rank == 1 and dims[box.dim].src == 1 and dims[box.dim].dst == 1:
        return _list_run(resident[box.dst : box.dst + dims[box.dim].size], positions, found, _U(box.src))
    listed, values = found
    offsets, taken, _, _ = work
    total = _U(0)
    for start in range(0, positions.size, _BLOCK):
        block = positions[start : start + _BLOCK]
        count = _resolve(block, spot, work)
        for j in range(count):
            values[total + j] = resident[offsets[j]]
        for j in range(count):
            listed[total + j] = block[_U(taken[j])]
        total += count
    return total


@kept
def _storage(store: Any, like: Any) -> Any:
    return carray(pointer(store.address, like), (store.num_bytes // like.itemsize,))


@kept
def _span(positions: Any, box: Any) -> Any:
    """First position within the range of ``box`` and one past the last; positions ascend.

    Looked for from both ends, in steps that double: most boxes end near them.
    """
    low, high, step = 0, positions.size, 1
    if high and positions[0] < box.src:
        while step < high and positions[step] < box.src:
            step *= 2
        low = step // 2 + np.searchsorted(positions[step // 2 : min(step, high)], box.src)
    if high and positions[high - 1] > box.last:
        step = 1
        while step < high - low and positions[high - 1 - step] > box.last:
            step *= 2
        start = max(low, high - step)
        high = start + np.searchsorted(positions[start : high - step // 2], box.last + 1)
    return low, max(low, high)


@kept
def _foresee(item: Any, like: Any, index: Any) -> None:
    """Ask for both ends of an item before its turn: a run is entered at one of them."""
    for line in range(0, 256, 64):
        fetch(item.positions + line)
        fetch(item.positions + index.itemsize * (item.num - 1) - line)
    for line in range(0, 128, 64):
        fetch(item.values + line)
        fetch(item.values + like.itemsize * (item.num - 1) - line)


@kept
def scatter(items: Any, plan: Any, likes: Any) -> None:
    """Write all ``items``, whose arrays are of the types of ``likes``; ``items.done`` counts writes."""
    first_box, boxes, dims, stores = plan
    like, index = likes
    work = _work()
    for n in range(items.size):
        if n + 1 < items.size:
            _foresee(items[n + 1], like, index)
        total, row = _U(0), items[n].row
        positions = carray(pointer(items[n].positions, index), (items[n].num,))
        values = carray(pointer(items[n].values, like), (items[n].num,))
        for x in range(first_box[row], first_box[row + 1]):
            box = boxes[x]
            resident = _storage(stores[box.store], like)
            total += _put_box(resident, positions, values, items[n].action, (box, dims), work)
        items[n].done = total


@kept
def _read_row(row: Any, positions: Any, plan: Any, found: Any, work: Any) -> Any:
    """Read all boxes of ``row``; the number of one that contradicts an earlier one, or -1."""
    first_box, boxes, dims, stores = plan
    values, held = found
    differs = -1
    for x in range(first_box[row], first_box[row + 1]):
        box = boxes[x]
        low, high = _span(positions, box)
        resident = _storage(stores[box.store], values)
        if _get_box(resident, positions[low:high], (values[low:high], held[low:high]), (box, dims), work):
            differs = x
    return differs


@kept
def read(items: Any, plan: Any, likes: Any, flags: Any) -> None:
    """Read the positions of all ``items`` into their values and held flags (as ``flags`` [0], bool).

    ``items.done`` is the number of a box that contradicts an earlier one, or -1.
    """
    work = _work()
    like, index = likes
    for n in range(items.size):
        positions = carray(pointer(items[n].positions, index), (items[n].num,))
        values = carray(pointer(items[n].values, like), (items[n].num,))
        held = carray(pointer(items[n].held, flags), (items[n].num,))
        items[n].done = _read_row(items[n].row, positions, plan, (values, held), work)


@kept
def _list_row(row: Any, positions: Any, plan: Any, room: Any, work: Any) -> Any:
    """List what all boxes of ``row`` hold; how many positions, and as ``_read_row``."""
    first_box, boxes, dims, stores = plan
    listed, values, read_values, held = room
    if first_box[row] + 1 == first_box[row + 1]:
        box = boxes[first_box[row]]
        low, high = _span(positions, box)
        resident = _storage(stores[box.store], values)
        return _list_box(resident, positions[low:high], (listed, values), (box, dims), work), -1
    held[: positions.size] = False
    differs = _read_row(row, positions, plan, (read_values[: positions.size], held[: positions.size]), work)
    count = _U(0)
    for i in range(_U(positions.size)):
        listed[count], values[count] = positions[i], read_values[i]
        count += _U(held[i])
    return count, differs


@kept
def _unlike(positions: Any, sent: Any, listed: Any, values: Any) -> Any:
    """At how many of the ``listed`` positions, a part of ``positions``, ``values`` are not as ``sent``."""
    wrong, j = _U(0), _U(0)
    for i in range(_U(positions.size)):
        if j < _U(listed.size) and listed[j] == positions[i]:
            wrong += _U(values[j] != sent[i])
            j += _U(1)
    return wrong


@kept
def gather(items: Any, plan: Any, room: Any, answers: Any, index: Any) -> None:
    """List what is held of all ``items``, one after another, in ``room``, which has a place for each entry.

    ``room``: listed positions int64, values, and as much again for values and flags. ``answers`` int64 [I]:
    where each item ends, and how many of its values are not held, if it is to be SET. ``items.done`` as of
    ``read``.
    """
    work = _work()
    listed, values, read_values, held = room
    ends, wrong = answers
    end = _U(0)
    for n in range(items.size):
        positions = carray(pointer(items[n].positions, index), (items[n].num,))
        rest = listed[end:], values[end:], read_values, held
        count, items[n].done = _list_row(items[n].row, positions, plan, rest, work)
        if items[n].action == _SET:
            sent = carray(pointer(items[n].values, values), (items[n].num,))
            wrong[n] = _unlike(positions, sent, rest[0][:count], rest[1][:count])
        end += count
        ends[n] = end
