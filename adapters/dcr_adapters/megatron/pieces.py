"""What one parameter contributes to one canonical tensor: rows taken, where they go, what is added.

Shape legend: R rows and C columns of a local parameter seen as a matrix; T rows taken.
"""

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from dcr.indexmap import IndexMap, Indices, compose, from_rows

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Rows of a local parameter in a canonical tensor, before experts are stacked.

    ``table`` [R] is the canonical row of each local row, -1 where it belongs to another tensor;
    ``shape`` is the canonical shape with ``table`` in its first dimension; ``column`` is where the
    local columns begin in ``prod(shape[1:])``. ``split`` says whether tensor-parallel ranks hold
    different parts. ``plus_one``: the served value is one more than the stored one.
    """

    name: str
    shape: Shape
    table: Indices
    column: int = 0
    split: bool = True
    plus_one: bool = False
    dims: Shape | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """Where one expert lies in a canonical tensor of all of them."""

    expert: int
    num_experts: int


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Rows of a parameter, taken in order, and their map [T * C] -> canonical; complete and injective.

    ``rows`` is None where ``first .. first + T - 1`` are taken.
    """

    name: str
    shape: Shape
    map: IndexMap
    first: int
    rows: Indices | None
    split: bool
    plus_one: bool

    def take(self, parameter: "torch.Tensor", start: int = 0, stop: int | None = None) -> "torch.Tensor":
        """Elements ``start .. stop - 1`` [stop - start] of the rows of a live parameter.

        A view where the rows lie together; else only the rows that are touched are copied.
        """
        import torch

        matrix = parameter.detach()
        matrix = matrix.reshape(matrix.shape[0] if matrix.ndim else 1, -1)
        width = matrix.shape[1]
        stop = self.map.src_size if stop is None else stop
        if self.rows is None:
            return matrix.reshape(-1)[self.first * width + start : self.first * width + stop]
        top = start // width
        rows = torch.from_numpy(self.rows[top : -(-stop // width)]).to(matrix.device)
        return matrix.index_select(0, rows).reshape(-1)[start - top * width : stop - top * width]


def piece_of(
    target: Target, width: int, *, stack: Stack | None = None, num_rows: int | None = None
) -> Piece | None:
    """The piece of a parameter with rows of ``width`` elements; None if it holds nothing of the tensor.

    Canonical rows from ``num_rows`` on are padding that only the trainer has (R4); they are cropped.
    """
    full = target.shape if num_rows is None else (min(num_rows, target.shape[0]), *target.shape[1:])
    table = target.table
    if num_rows is not None:
        table = np.where(table < num_rows, table, -1)
    rows = np.flatnonzero(table >= 0).astype(np.int64)
    if not rows.size or not width:
        return None
    matrix = (full[0] if full else 1, prod(full[1:]))
    dims, shape = target.dims, full
    turned = dims == (1, 0) and len(full) == 2
    index_map = from_rows(table[rows], width, matrix, column=target.column, transposed=turned)
    if dims is not None and dims != tuple(range(len(full))):
        shape = tuple(full[dim] for dim in dims)
        if not turned:
            index_map = compose(index_map, IndexMap.permuted(full, dims))
    if stack is not None:
        index_map, shape = stacked(index_map, shape, stack)
    return Piece(target.name, shape, index_map, *taken(rows), split=target.split, plus_one=target.plus_one)


def taken(rows: Indices) -> tuple[int, Indices | None]:
    """``first`` and ``rows`` of the piece that takes ``rows`` [T > 0], which ascend."""
    together = int(rows[-1] - rows[0]) + 1 == rows.size
    return int(rows[0]), None if together else rows


def transposed(target: Target) -> Target:
    """The target with its last two dimensions exchanged, after any permutation that it has."""
    dims = list(target.dims or range(len(target.shape)))
    dims[-1], dims[-2] = dims[-2], dims[-1]
    return replace(target, dims=tuple(dims))


def stacked(index_map: IndexMap, shape: Shape, stack: Stack) -> tuple[IndexMap, Shape]:
    """A map into one expert's tensor of ``shape`` as one into the tensor of all, and that one's shape."""
    size = prod(shape)
    boxes = tuple(replace(box, dst_offset=box.dst_offset + stack.expert * size) for box in index_map.boxes)
    return IndexMap(boxes, index_map.src_size, stack.num_experts * size), (stack.num_experts, *shape)
