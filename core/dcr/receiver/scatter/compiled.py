"""The loops of ``numba_engine``; imported when first needed, compiled once a width, kept on disk if possible.

Records are those of ``plan`` and of ``numba_engine.ITEM``. An index computed from a position is compared
with the sizes of its box before it is used, and a box lies within its storage (``compile_plan``): what
an item says never decides whether a write stays inside. All indices are unsigned, which spares numba's
wrap of negative ones. Positions are resolved in blocks that stay in the first-level cache, so that
reading and writing storage is a bare loop whose misses overlap.

``spot`` is a box with the dimensions of all boxes, ``work`` what ``_work`` makes. Shape legend: E entries.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

numba: Any = import_module("numba")  # its types do not say what it exports
intrinsic: Any = import_module("numba.extending").intrinsic
types: Any = numba.types
carray: Any = numba.carray

_U = np.uint64
_BLOCK = 256
_SET, _XOR, _ADD = 0, 1, 2


def _kept(function: Callable[..., Any]) -> Any:
    """Compiled code on disk, or in this process only where the installation is read-only."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def _pointer(typing_context: Any, address: Any, like: Any) -> Any:
    """``address`` as a pointer to elements of ``like``."""
    pointer = types.CPointer(like.dtype)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return pointer(types.int64, like), generate


@_kept
def _work() -> Any:
    """Offsets of a block, which of its positions they belong to, and the last row of the box."""
    return np.empty(_BLOCK, np.uint64), np.empty(_BLOCK, np.uint16), np.zeros(1, np.uint64)


@_kept
def _run(positions: Any, spot: Any, work: Any) -> Any:
    """Resolve a block of positions in a box of consecutive elements; how many lie in it."""
    box, dims = spot
    offsets, taken, _ = work
    first, offset = _U(box.src), _U(box.dst)
    size, step = _U(dims[box.dim].size), _U(dims[box.dim].dst)
    count = _U(0)
    for i in range(_U(positions.size)):
        at = _U(positions[i]) - first
        offsets[count] = offset + at * step
        taken[count] = i
        count += _U(at < size)
    return count


@_kept
def _rows(positions: Any, spot: Any, work: Any) -> Any:
    """The same in a box of two dimensions, from the row that the last block ended in."""
    box, dims = spot
    offsets, taken, last = work
    outer, inner = dims[box.dim], dims[box.dim + 1]
    pitch, num_rows, row_step = _U(outer.src), _U(outer.size), _U(outer.dst)
    stride, size, step = _U(inner.src), _U(inner.size), _U(inner.dst)
    first, row, count = _U(box.src), last[0], _U(0)
    row_first, row_offset = first + row * pitch, _U(box.dst) + row * row_step
    for i in range(_U(positions.size)):
        at = _U(positions[i]) - row_first
        if at >= pitch:
            at = _U(positions[i]) - first
            row = at // pitch
            at -= row * pitch
            row_first, row_offset = first + row * pitch, _U(box.dst) + row * row_step
        column = at if stride == 1 else at // stride
        offsets[count] = row_offset + column * step
        taken[count] = i
        count += _U((column < size) & (row < num_rows) & (column * stride == at))
    last[0] = row
    return count


@_kept
def _any(positions: Any, spot: Any, work: Any) -> Any:
    """The same in any box."""
    box, dims = spot
    offsets, taken, _ = work
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


@_kept
def _resolve(positions: Any, spot: Any, work: Any) -> Any:
    box, dims = spot
    if box.rank == 1 and dims[box.dim].src == 1:
        return _run(positions, spot, work)
    if box.rank == 2:
        return _rows(positions, spot, work)
    return _any(positions, spot, work)


@_kept
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


@_kept
def _set_run(resident: Any, positions: Any, values: Any, first: Any) -> Any:
    """Positions of a run that is stored as a run, which is most of every model: no block between."""
    count, size = _U(0), _U(resident.size)
    for i in range(_U(positions.size)):
        at = _U(positions[i]) - first
        if at < size:
            resident[at] = values[i]
            count += _U(1)
    return count


@_kept
def _xor_run(resident: Any, positions: Any, values: Any, first: Any) -> Any:
    count, size = _U(0), _U(resident.size)
    for i in range(_U(positions.size)):
        at = _U(positions[i]) - first
        if at < size:
            resident[at] ^= values[i]
            count += _U(1)
    return count


@_kept
def _add_run(resident: Any, positions: Any, values: Any, first: Any) -> Any:
    count, size = _U(0), _U(resident.size)
    for i in range(_U(positions.size)):
        at = _U(positions[i]) - first
        if at < size:
            resident[at] += values[i]
            count += _U(1)
    return count


@_kept
def _put_box(resident: Any, positions: Any, values: Any, action: Any, spot: Any, work: Any) -> Any:
    """Write what lies in one box; how many elements."""
    box, dims = spot
    if box.rank == 1 and dims[box.dim].src == 1 and dims[box.dim].dst == 1:
        run = resident[box.dst : box.dst + dims[box.dim].size]
        if action == _SET:
            return _set_run(run, positions, values, _U(box.src))
        if action == _XOR:
            return _xor_run(run, positions, values, _U(box.src))
        return _add_run(run, positions, values, _U(box.src))
    offsets, taken, last = work
    last[0] = 0
    total = _U(0)
    for start in range(0, positions.size, _BLOCK):
        count = _resolve(positions[start : start + _BLOCK], spot, work)
        _put(resident, values[start : start + _BLOCK], offsets[:count], taken, action)
        total += count
    return total


@_kept
def _get_run(resident: Any, positions: Any, values: Any, held: Any, first: Any) -> Any:
    """As ``_get_box`` for a run that is stored as a run, ``resident``."""
    wrong, size = _U(0), _U(resident.size)
    for i in range(_U(positions.size)):
        at = _U(positions[i]) - first
        if at < size:
            got = resident[at]
            if held[i]:
                wrong += _U(values[i] != got)
            else:
                values[i] = got
                held[i] = True
    return wrong


@_kept
def _get_box(resident: Any, positions: Any, values: Any, held: Any, spot: Any, work: Any) -> Any:
    """Read into ``values`` where nothing is ``held`` yet; how many held ones the storage contradicts."""
    box, dims = spot
    if box.rank == 1 and dims[box.dim].src == 1 and dims[box.dim].dst == 1:
        run = resident[box.dst : box.dst + dims[box.dim].size]
        return _get_run(run, positions, values, held, _U(box.src))
    offsets, taken, last = work
    last[0] = 0
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


@_kept
def _storage(store: Any, like: Any) -> Any:
    return carray(_pointer(store.address, like), (store.num_bytes // like.itemsize,))


@_kept
def _span(positions: Any, box: Any) -> Any:
    """First position within the range of ``box`` and one past the last; positions ascend."""
    return np.searchsorted(positions, box.src), np.searchsorted(positions, box.last + 1)


@_kept
def scatter(items: Any, plan: Any, like: Any) -> None:
    """Write all ``items``, whose elements have the width of ``like`` [0]; ``items.done`` counts writes."""
    first_box, boxes, dims, stores = plan
    work = _work()
    for n in range(items.size):
        total, row = _U(0), items[n].row
        positions = carray(_pointer(items[n].positions, first_box), (items[n].num,))
        values = carray(_pointer(items[n].values, like), (items[n].num,))
        for x in range(first_box[row], first_box[row + 1]):
            box = boxes[x]
            low, high = _span(positions, box)
            resident = _storage(stores[box.store], like)
            total += _put_box(
                resident, positions[low:high], values[low:high], items[n].action, (box, dims), work
            )
        items[n].done = total


@_kept
def read(items: Any, plan: Any, like: Any, flags: Any) -> None:
    """Read the positions of all ``items`` into their values and held flags (as ``flags`` [0], bool).

    ``items.done`` is the number of a box that contradicts an earlier one, or -1.
    """
    first_box, boxes, dims, stores = plan
    work = _work()
    for n in range(items.size):
        row = items[n].row
        items[n].done = -1
        positions = carray(_pointer(items[n].positions, first_box), (items[n].num,))
        values = carray(_pointer(items[n].values, like), (items[n].num,))
        held = carray(_pointer(items[n].held, flags), (items[n].num,))
        for x in range(first_box[row], first_box[row + 1]):
            box = boxes[x]
            low, high = _span(positions, box)
            resident = _storage(stores[box.store], like)
            if _get_box(resident, positions[low:high], values[low:high], held[low:high], (box, dims), work):
                items[n].done = x
