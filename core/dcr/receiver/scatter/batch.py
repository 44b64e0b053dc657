"""Items of one payload, resolved to rows of a plan; what every engine takes. Shape legend: E entries."""

from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.codec import Positions
from dcr.model import Bits, Encoding

Indices: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


class Action(IntEnum):
    """What happens to a resident element. SET: it takes the value. XOR, ADD: combined, modulo its width."""

    SET = 0
    XOR = 1
    ADD = 2
    READ = 3


ACTIONS = {Encoding.OVERWRITE: Action.SET, Encoding.XOR: Action.XOR, Encoding.DELTA16: Action.ADD}


class Widths(NamedTuple):
    """Bytes of an ``element`` and of a ``position``: one compiled loop takes items of one such pair."""

    element: int
    position: int


class Entries(NamedTuple):
    """Changes of one row: ``values`` [E] of its width at canonical ``positions`` [E], ascending.

    A tuple, because one is made for every item of every payload.
    """

    row: int
    action: Action
    positions: Positions
    values: Bits


@dataclass(frozen=True, slots=True)
class Readback:
    """What lies at some positions [E]: ``values`` where ``held``; zero elsewhere.

    ``differs`` is the number of a box that holds other bits than an earlier one, -1 if replicas agree.
    """

    values: Bits
    held: NDArray[np.bool_]
    differs: int

    @property
    def complete(self) -> bool:
        """Whether every position is held."""
        return bool(self.held.all())


@dataclass(frozen=True, slots=True)
class Listed:
    """What is held of several entries: ``positions`` int64 [F] and ``values`` [F], entry after entry.

    ``ends`` int64: where each entry ends. ``differs`` as of ``Readback``; ``wrong``: how many of the
    values of an entry that is to be SET are not there.
    """

    positions: Indices
    values: Bits
    ends: Indices
    differs: list[int]
    wrong: list[int]


class Room:
    """Memory of ``Engine.gather`` that is used again: pages that the system hands out anew cost more."""

    def __init__(self) -> None:
        self._bytes = np.empty(0, np.uint8)

    def arrays(self, size: int, width_bytes: int) -> tuple[Indices, Bits, Bits, Mask]:
        """Uninitialised [size]: positions, values twice, flags. What was given before is void."""
        ends = np.cumsum([0, 8 * size, 8 * size, 8 * size, size])
        if self._bytes.size < ends[-1]:
            self._bytes = np.empty(int(ends[-1]), np.uint8)
        parts = [self._bytes[start:stop] for start, stop in pairwise(ends.tolist())]
        bits = of_width(width_bytes)
        return (
            parts[0].view(np.int64),
            parts[1].view(bits)[:size],
            parts[2].view(bits)[:size],
            parts[3].view(bool),
        )


def of_width(width_bytes: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Unsigned type of bits of that width."""
    return np.dtype(f"<u{width_bytes}")
