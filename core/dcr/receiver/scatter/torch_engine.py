"""Scatter and read back with torch, for storages on devices (DESIGN B2, paper section 6).

Positions are resolved on the host. One packed transfer a device carries offsets and values of the whole
batch, then every storage takes one ``index_put_`` on an integer view: 6 bytes a change of a 2-byte
tensor cross the bus, against the whole tensor with the hook. Offsets are int32 unless a storage has
2^31 elements. Shape legend: E entries of a batch on one device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcr.codec import Positions
from dcr.receiver.lanes import LANES
from dcr.receiver.scatter.batch import Action, Entries, Indices, Readback, of_width
from dcr.receiver.scatter.numpy_engine import Selector, merge, resolve
from dcr.receiver.scatter.plan import Plan

_FAR = 1 << 31


@dataclass(frozen=True, slots=True)
class _Piece:
    """What one box takes of entry ``entry`` of a batch: ``at`` selects entries, ``offsets`` int64 [E]."""

    entry: int
    box: int
    store: int
    width: int
    action: Action
    at: Selector
    offsets: Indices


def scatter(plan: Plan, batch: Sequence[Entries]) -> list[int]:
    """Write ``batch``; how many elements of each were written, replicas included.

    Entries of one batch must name an element of storage once, as learned placements do.
    """
    pieces = [
        piece
        for i, entries in enumerate(batch)
        for piece in _pieces(plan, i, entries.row, entries.action, entries.positions)
    ]
    for group in _by_device(plan, pieces):
        _scatter(plan, [(piece, batch[piece.entry].values[piece.at]) for piece in group])
    done = [0] * len(batch)
    for piece in pieces:
        done[piece.entry] += int(piece.offsets.size)
    return done


def read(plan: Plan, batch: Sequence[tuple[int, Positions]]) -> list[Readback]:
    """What storage holds for (row, positions [E])."""
    pieces = [p for i, (row, at) in enumerate(batch) for p in _pieces(plan, i, row, Action.READ, at)]
    found = [np.zeros(at.shape, dtype=of_width(int(plan.widths[row]))) for row, at in batch]
    held = [np.zeros(at.shape, dtype=bool) for _, at in batch]
    differs = [-1] * len(batch)
    for group in _by_device(plan, pieces):
        for piece, got in zip(group, _gather(plan, group), strict=True):
            if not merge(found[piece.entry], held[piece.entry], piece.at, got):
                differs[piece.entry] = piece.box
    return [Readback(*parts) for parts in zip(found, held, differs, strict=True)]


def _pieces(plan: Plan, entry: int, row: int, action: Action, positions: Positions) -> Iterator[_Piece]:
    for number in plan.boxes_of(row):
        at, offsets = resolve(plan.box(number), positions)
        if offsets.size:
            width = int(plan.widths[row])
            yield _Piece(entry, number, plan.store_of(number), width, action, at, offsets)


def _by_device(plan: Plan, pieces: Sequence[_Piece]) -> Iterator[list[_Piece]]:
    """Pieces of each device, those of one storage, width and action next to each other."""
    order = sorted(pieces, key=lambda p: (str(plan.stores[p.store].device), p.width, p.store, p.action))
    for _, group in groupby(order, key=lambda piece: str(plan.stores[piece.store].device)):
        yield list(group)


def _target(piece: _Piece) -> tuple[int, int, Action]:
    return piece.store, piece.width, piece.action


def _scatter(plan: Plan, group: list[tuple[_Piece, NDArray[Any]]]) -> None:
    device = plan.stores[group[0][0].store].device
    offsets = _offsets(plan, [piece for piece, _ in group])
    packed = _pack([offsets, *(values for _, values in group)])
    sent = packed.to(device, non_blocking=True)
    at = sent[: offsets.nbytes].view(torch.int32 if offsets.itemsize == 4 else torch.int64)
    done, start = 0, offsets.nbytes
    for (store, width, action), parts in groupby(group, key=lambda part: _target(part[0])):
        num = sum(values.size for _, values in parts)
        start += -start % width
        values = sent[start : start + num * width].view(LANES[width])
        _put(plan.stores.flat(store, LANES[width]), at[done : done + num], values, action)
        done, start = done + num, start + num * width


def _put(resident: torch.Tensor, at: torch.Tensor, values: torch.Tensor, action: Action) -> None:
    if action is Action.XOR:
        values = resident[at] ^ values
    elif action is Action.ADD:
        values = resident[at] + values
    resident.index_put_((at,), values)


def _gather(plan: Plan, group: list[_Piece]) -> list[NDArray[Any]]:
    """Bits at the offsets of each piece: one transfer up, one down."""
    device = plan.stores[group[0].store].device
    at = torch.from_numpy(_offsets(plan, group)).to(device, non_blocking=True)
    got: list[torch.Tensor] = []
    done = 0
    for piece in group:
        num = int(piece.offsets.size)
        resident = plan.stores.flat(piece.store, LANES[piece.width])
        got.append(resident[at[done : done + num]].view(torch.uint8))
        done += num
    raw = torch.cat(got).cpu().numpy()
    ends = np.cumsum([part.numel() for part in got]).tolist()
    return [
        raw[end - part.numel() : end].view(of_width(piece.width))
        for piece, part, end in zip(group, got, ends, strict=True)
    ]


def _offsets(plan: Plan, group: list[_Piece]) -> NDArray[Any]:
    largest = max(plan.stores[piece.store].num_bytes // piece.width for piece in group)
    whole = np.concatenate([piece.offsets for piece in group])
    return whole.astype(np.int32) if largest <= _FAR else whole


def _pack(arrays: list[NDArray[Any]]) -> torch.Tensor:
    """One buffer of bytes; each array starts at a multiple of its own width."""
    starts, end = [], 0
    for array in arrays:
        end += -end % array.itemsize
        starts.append(end)
        end += array.nbytes
    packed = torch.empty(end, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
    room = packed.numpy()
    for array, start in zip(arrays, starts, strict=True):
        room[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8)
    return packed
