"""What a learning pass notes about a loader, before anything is concluded from it (DESIGN R11, B2)."""

import hashlib
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

import torch


class Kind(Enum):
    """How the loader writes. SCALAR is a copy through a Python number; CONSTANT needs no weights."""

    COPY = 1
    SCALAR = 2
    CONSTANT = 3
    COMPUTED = 4


class Extent(NamedTuple):
    """Bytes start .. stop - 1 of a storage."""

    storage: int
    start: int
    stop: int


_FILL = "fill "
NOTHING: frozenset[Extent] = frozenset()
NOBODY: frozenset[str] = frozenset()


class Source(NamedTuple):
    """Where a copy reads the flat canonical tensor, in elements of ``dtype``, the type it is read as.

    ``dtype`` is the type of the view that the loader copies from; ``through`` is the type of a cast made
    before the copy, if any. ``direct``: the view is of the scratch itself, as the dispatch hook needs it.
    """

    offset: int
    strides: tuple[int, ...]
    dtype: torch.dtype
    through: torch.dtype | None
    direct: bool


class Write(NamedTuple):
    """One write into a resident storage; offset and strides in elements of ``dtype``.

    ``source`` belongs to COPY and SCALAR. COMPUTED has the operation in ``what``, and the canonical
    tensors and resident bytes that it was made of. CONSTANT has its contents in ``what``.
    """

    kind: Kind
    storage: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    source: Source | None = None
    what: str = ""
    names: frozenset[str] = NOBODY
    reads: frozenset[Extent] = NOTHING

    @property
    def uniform(self) -> bool:
        """Whether a CONSTANT write stores one number everywhere."""
        return self.what.startswith(_FILL)

    @property
    def extent(self) -> Extent:
        """Bytes between the first and the last that are written."""
        return extent_of(self.storage, self.offset, self.shape, self.strides, self.dtype.itemsize)


class Made(NamedTuple):
    """Of what a temporary was made: canonical tensors and resident bytes."""

    names: frozenset[str] = NOBODY
    reads: frozenset[Extent] = NOTHING

    def joined(self, other: "Made") -> "Made":
        """Made of both."""
        return Made(self.names | other.names, self.reads | other.reads)


class Number(NamedTuple):
    """The last Python number read out of a scratch: element ``offset`` of tensor ``name``."""

    name: str
    value: Any
    offset: int
    dtype: torch.dtype

    def equals(self, value: Any) -> bool:
        """Whether ``value`` is that number, NaN included."""
        return bool(value == self.value or (value != value and self.value != self.value))


@dataclass(slots=True)
class Trace:
    """What happened while, or because, one canonical tensor was loaded; order is the loader's.

    ``expected``: host tensors of CONSTANT writes, in their order. ``reads``: resident bytes that were
    looked at. ``reads_values``: the loader may have decided by the tensor's values; ``undecided`` says that
    it did. ``takes_numbers``: it made Python numbers or arrays of them. ``refusal``: what no method can
    repeat. ``error``: what the loader raised.
    """

    writes: list[Write] = field(default_factory=list)
    expected: list[torch.Tensor] = field(default_factory=list, compare=False)
    reads: set[Extent] = field(default_factory=set)
    reads_values: bool = False
    takes_numbers: bool = False
    undecided: str = ""
    refusal: str = ""
    error: str = ""

    def refuse(self, reason: str) -> None:
        """Keep the first reason."""
        self.refusal = self.refusal or reason


Traces: TypeAlias = dict[str, Trace]
"""By canonical name; "" is what happens when no tensor is being loaded."""


def extent_of(
    storage: int, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], width: int
) -> Extent:
    """Bytes that a strided view of at least one element spans."""
    last = offset
    for n, s in zip(shape, strides, strict=True):
        last += (n - 1) * s
    return Extent(storage, offset * width, (last + 1) * width)


def digest_of(tensor: torch.Tensor) -> str:
    """BLAKE2b-128 of a host tensor's dtype and stored bits; of one element, and marked, if it is expanded."""
    uniform = not any(tensor.stride())
    kept = tensor.as_strided((1,), (1,)) if uniform else tensor
    raw = kept.contiguous().reshape(-1).view(torch.uint8).numpy()
    digest = hashlib.blake2b(raw.data, digest_size=16).hexdigest()
    return f"{_FILL if uniform else ''}{tensor.dtype} {digest}"
