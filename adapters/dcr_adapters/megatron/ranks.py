"""Which ranks hold the same shard, from degrees alone (paper section 5, DESIGN R1).

Megatron lays ranks out twice over one world: for dense weights over (tp, cp, dp, pp) and for expert
weights over (etp, ep, expert dp, pp). No collective and no process group is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from dcr.errors import ConfigError, UnsupportedPath

ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""Megatron's two orders, the fastest varying axis first."""


@dataclass(frozen=True, slots=True)
class Degrees:
    """Sizes of the parallel axes; ``dp`` counts replicas of dense weights without context parallelism."""

    tp: int = 1
    pp: int = 1
    ep: int = 1
    etp: int = 1
    dp: int = 1
    cp: int = 1
    order: str = ORDERS[0]

    def __post_init__(self) -> None:
        for axis in ("tp", "pp", "ep", "etp", "dp", "cp"):
            if getattr(self, axis) < 1:
                raise ConfigError(f"{axis}={getattr(self, axis)}: a parallel degree is at least 1")
        if self.order not in ORDERS:
            raise ConfigError(f"order {self.order!r} must be one of {', '.join(ORDERS)}")
        if (self.world // self.pp) % (self.etp * self.ep):
            raise ConfigError(
                f"tp={self.tp} x cp={self.cp} x dp={self.dp} ranks of a stage cannot be laid out over "
                f"etp={self.etp} x ep={self.ep}; make dp a multiple of what is missing"
            )

    @property
    def world(self) -> int:
        """Number of trainer ranks."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def expert_dp(self) -> int:
        """Replicas of an expert shard."""
        return self.world // (self.pp * self.etp * self.ep)


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's part of a tensor-parallel axis, and the sorted ranks that hold the same shard."""

    size: int
    rank: int
    replicas: tuple[int, ...]


class Grid:
    """Coordinates of every rank for dense and for expert weights."""

    def __init__(self, degrees: Degrees) -> None:
        self.degrees = degrees
        dense = {"tp": degrees.tp, "cp": degrees.cp, "dp": degrees.dp, "pp": degrees.pp}
        expert = {"tp": degrees.etp, "ep": degrees.ep, "dp": degrees.expert_dp, "pp": degrees.pp}
        self._axes = {False: _laid_out(dense, degrees.order), True: _laid_out(expert, degrees.order)}

    def coordinate(self, rank: int, *, expert: bool) -> dict[str, int]:
        """Index of ``rank`` on each axis."""
        names, ranks = self._axes[expert]
        at = np.argwhere(ranks == rank)[0]
        return dict(zip(names, at.tolist(), strict=True))

    def sharing(self, rank: int, axes: tuple[str, ...], *, expert: bool) -> tuple[int, ...]:
        """Sorted ranks that differ from ``rank`` on ``axes`` only; it is one of them."""
        names, ranks = self._axes[expert]
        at = self.coordinate(rank, expert=expert)
        index = tuple(slice(None) if name in axes else at[name] for name in names)
        return tuple(sorted(np.atleast_1d(ranks[index]).reshape(-1).tolist()))

    def ranks(self, *, expert: bool, **at: int) -> tuple[int, ...]:
        """Sorted ranks with these coordinates; axes that are not named are free."""
        names, ranks = self._axes[expert]
        index = tuple(at.get(name, slice(None)) for name in names)
        return tuple(sorted(np.atleast_1d(ranks[index]).reshape(-1).tolist()))

    def place(self, rank: int, *, expert: bool, split: bool) -> Place:
        """Where ``rank`` stands for a weight that tensor parallelism splits, or leaves whole."""
        size = self.degrees.etp if expert else self.degrees.tp
        free = ("cp", "dp") if split else ("tp", "cp", "dp")
        replicas = self.sharing(rank, free, expert=expert)
        return Place(size, self.coordinate(rank, expert=expert)["tp"], replicas)


def grid_of(groups: Mapping[str, tuple[int, ...]], rank: int, world: int) -> Grid:
    """The grid in which ``rank`` has these groups: ranks by tp, cp, pp, ep, expt_tp, dp_cp, expt_dp.

    Raises:
        UnsupportedPath: no order of Megatron's gives these groups.
    """
    sizes = {name: len(ranks) for name, ranks in groups.items()}
    dp = world // (sizes["tp"] * sizes["cp"] * sizes["pp"])
    for order in ORDERS:
        grid = Grid(
            Degrees(
                tp=sizes["tp"],
                pp=sizes["pp"],
                ep=sizes["ep"],
                etp=sizes["expt_tp"],
                dp=dp,
                cp=sizes["cp"],
                order=order,
            )
        )
        if _groups(grid, rank) == {name: tuple(sorted(ranks)) for name, ranks in groups.items()}:
            return grid
    raise UnsupportedPath(
        f"process groups of rank {rank}, {dict(groups)}, are laid out in none of the orders "
        f"{', '.join(ORDERS)}: replicas cannot be told; use Megatron's initialize_model_parallel"
    )


def _groups(grid: Grid, rank: int) -> dict[str, tuple[int, ...]]:
    dense = {"tp": ("tp",), "cp": ("cp",), "pp": ("pp",), "dp_cp": ("dp", "cp")}
    expert = {"ep": ("ep",), "expt_tp": ("tp",), "expt_dp": ("dp",)}
    found = {name: grid.sharing(rank, axes, expert=False) for name, axes in dense.items()}
    return found | {name: grid.sharing(rank, axes, expert=True) for name, axes in expert.items()}


def _laid_out(sizes: Mapping[str, int], order: str) -> tuple[tuple[str, ...], "np.ndarray"]:
    names = tuple(name for name in reversed(order.split("-")) if name in sizes)
    shape = [sizes[name] for name in names]
    return names, np.arange(prod(shape)).reshape(shape)
