"""Memory that holds a canonical tensor while it is being loaded: the scratch, and copies of it (DESIGN B2).

A loader may clone or cast a view of the scratch before it stores it. The clone is laid out as torch lays it
out, for a loader sees that (``is_contiguous``, ``as_strided``), so a view of it is translated to the
elements of the scratch that it holds.
"""

from typing import NamedTuple

import torch

from dcr.receiver.trace import Source


class Dim(NamedTuple):
    """A dimension of a clone: its size, its stride there, and the stride in the scratch."""

    size: int
    own: int
    scratch: int


class Frame(NamedTuple):
    """How a clone is laid out: ``dims`` by descending own stride; where its first element lies in each.

    ``width`` is the size of an element of the clone; all else is counted in elements.
    """

    dims: tuple[Dim, ...]
    own: int
    scratch: int
    width: int

    def offset_of(self, offset: int) -> tuple[int, list[int]] | None:
        """Scratch offset of the clone's element at ``offset``, and its index; None if there is none."""
        index = self._digits(offset - self.own)
        if index is None:
            return None
        steps = zip(index, self.dims, strict=True)
        return self.scratch + sum(i * dim.scratch for i, dim in steps), index

    def stride_of(self, n: int, stride: int, index: list[int]) -> int | None:
        """Scratch stride of ``n`` steps of ``stride`` in the clone; moves ``index`` by them, if they fit."""
        steps = self._digits(stride)
        if steps is None:
            return None
        for i, step in enumerate(steps):
            index[i] += step * (n - 1)
        return sum(step * dim.scratch for step, dim in zip(steps, self.dims, strict=True))

    def holds(self, index: list[int]) -> bool:
        """Whether ``index`` is one of the clone's: steps that leave a dimension have no single stride."""
        return all(0 <= i < dim.size for i, dim in zip(index, self.dims, strict=True))

    def _digits(self, offset: int) -> list[int] | None:
        digits = []
        for dim in self.dims:
            step, offset = divmod(offset, dim.own)
            digits.append(step)
        return None if offset else digits


class Mirror(NamedTuple):
    """One storage that holds elements of canonical tensor ``name``, whose scratch is of type ``dtype``.

    ``frame`` is None for the scratch itself. ``through`` is the type that a clone was cast to, if it was.
    """

    name: str
    dtype: torch.dtype
    through: torch.dtype | None = None
    frame: Frame | None = None

    def read_by(self, view: torch.Tensor) -> Source | None:
        """What ``view`` of this storage reads of the scratch; None if no offset and strides say it."""
        offset, strides = int(view.storage_offset()), view.stride()
        if self.frame is None:
            return Source(offset, strides, view.dtype, None, direct=True)
        if view.element_size() != self.frame.width or (found := self.frame.offset_of(offset)) is None:
            return None
        offset, index = found
        translated = [
            self.frame.stride_of(n, s, index) if n > 1 and s else 0
            for n, s in zip(view.shape, strides, strict=True)
        ]
        if None in translated or not self.frame.holds(index):
            return None
        kept = tuple(stride for stride in translated if stride is not None)
        return Source(offset, kept, view.dtype, self.through, direct=False)

    def twin(self, view: torch.Tensor, clone: torch.Tensor) -> "Mirror | None":
        """``clone`` of ``view`` as a mirror; None if its contents are not plainly the scratch's."""
        casts = clone.dtype != view.dtype
        if casts and (self.through is not None or view.dtype != self.dtype):
            return None  # a cast of a cast, or of other bits than the catalogue's
        origin = self.read_by(view)
        if origin is None or view.is_neg() or view.is_conj():
            return None
        return Mirror(self.name, self.dtype, clone.dtype if casts else self.through, _frame_of(clone, origin))


def _frame_of(clone: torch.Tensor, origin: Source) -> Frame:
    dims = [Dim(*dim) for dim in zip(clone.shape, clone.stride(), origin.strides, strict=True) if dim[0] != 1]
    merged: list[Dim] = []
    for dim in sorted(dims, key=lambda dim: -dim.own):
        if merged and merged[-1][1:] == (dim.size * dim.own, dim.size * dim.scratch):
            merged[-1] = Dim(merged[-1].size * dim.size, dim.own, dim.scratch)
        else:
            merged.append(dim)
    return Frame(tuple(merged), int(clone.storage_offset()), origin.offset, clone.element_size())
