"""Items of one payload, resolved to rows of a plan; what every engine takes. Shape legend: E entries."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.model import Bits, Encoding

Positions: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]


class Action(IntEnum):
    """What happens to a resident element. SET: it takes the value. XOR, ADD: combined, modulo its width."""

    SET = 0
    XOR = 1
    ADD = 2
    READ = 3


ACTIONS = {Encoding.OVERWRITE: Action.SET, Encoding.XOR: Action.XOR, Encoding.DELTA16: Action.ADD}


class Entries(NamedTuple):
    """Changes of one row: ``values`` [E] of its width at canonical ``positions`` int64 [E], ascending.

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


def of_width(width_bytes: int) -> np.dtype[np.unsignedinteger[Any]]:
    """Unsigned type of bits of that width."""
    return np.dtype(f"<u{width_bytes}")
