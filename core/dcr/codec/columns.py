"""Items of one payload side by side, for those who look at thousands of them. Shape legend: I items.

One pass when a payload is decoded, while its arrays are in the cache, spares every rank that takes it the
walk over item objects and their first and last entries.
"""

from collections.abc import Sequence
from ctypes import addressof, c_char
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.codec.item import Item
from dcr.model import Encoding

TensorKey: TypeAlias = tuple[str, tuple[int, ...], str]
"""Name, shape and dtype."""

ENCODINGS = (Encoding.OVERWRITE, Encoding.XOR, Encoding.DELTA16)
"""By their numbers in ``Columns.encodings``."""

_CODES = {encoding.value: code for code, encoding in enumerate(ENCODINGS)}


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """``encodings`` are numbers of ENCODINGS, ``nums`` counts of entries, ``firsts`` and ``lasts`` locations.

    ``positions`` and ``values`` are the addresses of the items' arrays, C-contiguous and aligned; valid as
    long as the items and ``kept`` live. ``index_bytes``: of a position. All int64 [I]; of items without
    entries all numbers but the first are 0.
    """

    keys: tuple[TensorKey, ...]
    encodings: NDArray[np.int64]
    nums: NDArray[np.int64]
    firsts: NDArray[np.int64]
    lasts: NDArray[np.int64]
    positions: NDArray[np.int64]
    values: NDArray[np.int64]
    index_bytes: NDArray[np.int64]
    kept: tuple[NDArray[Any], ...]


def columns_of(items: Sequence[Item]) -> Columns:
    """The columns of ``items``, in their order."""
    cells: list[int] = []
    kept: list[NDArray[Any]] = []
    for item in items:
        at, code = item.positions, _CODES[item.encoding.value]
        if num := at.size:
            cells += (code, num, at.item(0), at.item(-1))
            cells += (address(at, kept), address(item.values, kept), at.itemsize)
        else:
            cells += (code, 0, 0, 0, 0, 0, 0)
    table = np.array(cells, dtype=np.int64).reshape(len(items), 7).T.copy()
    keys = tuple([(item.name, tuple(item.shape), item.dtype) for item in items])
    encodings, nums, firsts, lasts, positions, values, index_bytes = table
    return Columns(keys, encodings, nums, firsts, lasts, positions, values, index_bytes, tuple(kept))


def address(array: NDArray[Any], kept: list[NDArray[Any]]) -> int:
    """Where ``array`` lies, or a copy of it that a compiled loop can read; ``kept`` keeps that alive.

    Of arrays as they are decoded, ctypes tells it in a fifth of the time that numpy takes.
    """
    if array.size and array.flags.carray:
        return addressof(c_char.from_buffer(array))  # type: ignore[arg-type]  # a buffer: told since 3.12
    plain = np.require(array, requirements=["C", "A"])
    kept.append(plain)
    return int(plain.ctypes.data)
