"""The engines by name; all give equal results (DESIGN B2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from numpy.typing import NDArray

from dcr.codec import Positions
from dcr.receiver.scatter import numba_engine, numpy_engine, torch_engine
from dcr.receiver.scatter.batch import Entries, Listed, Readback, Room, Widths
from dcr.receiver.scatter.plan import Plan

EngineName: TypeAlias = Literal["auto", "numba", "numpy", "torch"]
_COMPILE_FROM = 1 << 14
_GROUP = 8
_COMPILED_GROUP = 256


@dataclass(frozen=True, slots=True)
class Engine:
    """``scatter`` writes a batch and counts the writes of each of its entries; ``read`` reads positions.

    ``group``: how many items are best given at a time. A device wants a whole payload (one transfer);
    on the host few are enough (of compiled loops, so many that a call costs nothing beside them), and
    between groups an attempt can be stopped. ``gather``, where there is one, reads what was written
    without an array for each entry; ``write``, where there is one, takes records of items in place of them.
    """

    name: str
    scatter: Callable[[Plan, Sequence[Entries]], list[int]]
    read: Callable[[Plan, Sequence[tuple[int, Positions]]], list[Readback]]
    group: int
    gather: Callable[[Plan, NDArray[Any], Widths, Room], Listed] | None = None
    write: Callable[[Plan, NDArray[Any], Widths], None] | None = None


NUMBA = Engine(
    "numba",
    numba_engine.scatter,
    numba_engine.read,
    _COMPILED_GROUP,
    numba_engine.gather,
    numba_engine.write,
)
NUMPY = Engine("numpy", numpy_engine.scatter, numpy_engine.read, _GROUP)
TORCH = Engine("torch", torch_engine.scatter, torch_engine.read, 1 << 30)
_BY_NAME = {engine.name: engine for engine in (NUMBA, NUMPY, TORCH)}


def engine_for(name: EngineName, plan: Plan, num_entries: int) -> Engine:
    """``auto``: torch for devices; on the host compiled loops, but numpy where compiling cannot pay."""
    if name != "auto":
        return _BY_NAME[name]
    if not plan.on_host:
        return TORCH
    return NUMBA if num_entries >= _COMPILE_FROM else NUMPY
