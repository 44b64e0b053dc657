"""Where a DTensor's local shard lies in its canonical tensor, and who else holds it (DESIGN R4).

Everything is computed locally from mesh and placements; no collective.
"""

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from dcr.errors import UnsupportedPath

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

Ranks = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Block:
    """This rank's hyper-rectangular part of a canonical tensor, and the sorted ranks that hold it."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    replicas: tuple[int, ...]


def locate(name: str, tensor: DTensor) -> Block | None:
    """The block that ``tensor.to_local()`` is; None on a rank outside the tensor's mesh.

    Raises:
        UnsupportedPath: a placement is neither a shard nor a replica, or is a strided shard whose
            blocks cannot be known (uneven, or not the pattern of FSDP over tensor parallelism).
    """
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    offsets, shape = [0] * tensor.ndim, list(tensor.shape)
    for axis in _axes_in_order(name, tensor):
        dim = tensor.placements[axis].dim % tensor.ndim  # type: ignore[attr-defined]
        start, size = chunk(shape[dim], mesh.size(axis), coordinate[axis])
        offsets[dim], shape[dim] = offsets[dim] + start, size
    if tuple(shape) != tuple(tensor.to_local().shape):
        raise UnsupportedPath(
            f"{describe(name, tensor)}: expected a local shard of {tuple(shape)}, found "
            f"{tuple(tensor.to_local().shape)}; use a mesh and placements that divide the parameter evenly"
        )
    return Block(tuple(shape), tuple(offsets), _replicas(mesh, tensor.placements, coordinate))


def describe(name: str, tensor: DTensor) -> str:
    """Name, layout and sizes, for error messages."""
    mesh = tensor.device_mesh
    return (
        f"parameter {name!r} of shape {tuple(tensor.shape)} with placements {tuple(tensor.placements)} "
        f"on a mesh of {tuple(mesh.mesh.shape)} {mesh.mesh_dim_names or ''}"
    )


def _axes_in_order(name: str, tensor: DTensor) -> list[int]:
    """Mesh axes that cut the tensor, in the order in which they cut.

    Plain shards cut in mesh order. FSDP over tensor parallelism on one dim marks its own axis as
    strided: that axis comes first in the mesh and cuts last.
    """
    plain: list[int] = []
    strided: list[int] = []
    for axis, placement in enumerate(tensor.placements):
        if isinstance(placement, _StridedShard):
            _check_strided(name, tensor, axis)
            strided.append(axis)
        elif isinstance(placement, Shard):
            plain.append(axis)
        elif not isinstance(placement, Replicate):
            raise UnsupportedPath(
                f"{describe(name, tensor)}: {placement} is not a stored value; reduce it before the refit"
            )
    return plain + strided


def _check_strided(name: str, tensor: DTensor, axis: int) -> None:
    mesh, placement = tensor.device_mesh, tensor.placements[axis]
    assert isinstance(placement, _StridedShard)
    same_dim = {
        other: mesh.size(other)
        for other, cut in enumerate(tensor.placements)
        if isinstance(cut, Shard | _StridedShard) and cut.dim % tensor.ndim == placement.dim % tensor.ndim
    }
    inner = prod(size for other, size in same_dim.items() if other > axis)
    parts, rows = prod(same_dim.values()), tensor.shape[placement.dim]
    several = sum(isinstance(tensor.placements[other], _StridedShard) for other in same_dim) > 1
    if placement.split_factor != inner or several or rows % parts:
        raise UnsupportedPath(
            f"{describe(name, tensor)}: {rows} rows of dim {placement.dim} over {parts} strided shards; "
            "torch places uneven or nested strided shards wrongly: pad the dim to a multiple of "
            f"{parts}, or shard another dim"
        )


def chunk(size: int, parts: int, index: int) -> tuple[int, int]:
    """Start and length of part ``index`` under torch.chunk: all but the last ones are ceil(size / parts)."""
    most = -(-size // parts)
    start = min(size, most * index)
    return start, min(size, start + most) - start


def _replicas(
    mesh: "DeviceMesh", placements: tuple[Placement, ...], coordinate: "list[int] | tuple[int, ...]"
) -> tuple[int, ...]:
    ranks: Ranks = mesh.mesh.cpu().numpy().astype(np.int64)
    index = tuple(
        slice(None) if isinstance(placement, Replicate) else at
        for placement, at in zip(placements, coordinate, strict=True)
    )
    root: Ranks = mesh._get_root_mesh().mesh.cpu().numpy().astype(np.int64)
    same = ranks[index].reshape(-1)
    return tuple(sorted(_over_root(root, ranks.reshape(-1), same)))


def _over_root(root: Ranks, members: Ranks, same: Ranks) -> set[int]:
    """Ranks of ``same``, and their counterparts in the other slices of the root mesh.

    A tensor on a sub-mesh (a norm that tensor parallelism leaves whole, on the data axis only)
    exists once per coordinate of the axes that the sub-mesh leaves out.
    """
    where = np.array([np.argwhere(root == rank)[0] for rank in members if rank in root])
    if len(where) != members.size:
        return set(same.tolist())
    spanned = (where != where[0]).any(axis=0)
    if prod(size for size, used in zip(root.shape, spanned, strict=True) if used) != members.size:
        return set(same.tolist())
    found: set[int] = set()
    for rank in same:
        at = np.argwhere(root == rank)[0]
        index = tuple(int(i) if used else slice(None) for i, used in zip(at, spanned, strict=True))
        found.update(np.atleast_1d(root[index]).reshape(-1).tolist())
    return found
