"""Small loaders that do one unusual thing each, and what learning must make of it (DESIGN R11, R12, B2).

A pattern's loader holds ``target`` and, to see what spills over, ``neighbour``; tensor "w" is loaded the
unusual way and "n" plainly. ``WRONG`` patterns cannot take deltas at all. Other runtimes' lanes may run
the patterns under their own torch, and use ``Oracle`` on their own loaders.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

from dcr.model import Catalogue, PathClass, TensorSpec
from dcr.receiver.rank import Method
from dcr.testing.toy_runtime import AUDIT_KEY, RUN

BF16 = torch.bfloat16
ORDER = [3, 1, 0, 2, 4, 5, 6, 7]
Place: TypeAlias = Callable[["TortureRuntime", torch.Tensor], Any]
Load: TypeAlias = Callable[["TortureRuntime", Iterable[tuple[str, torch.Tensor]]], Any]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to load "w". ``refusal`` is part of the reason where no delta can be taken.

    ``method``: of "w"; ``path`` its class. ``load`` replaces the whole loop. ``resident`` are further
    resident tensors, made anew for each runtime; ``specs`` are the canonical tensors.
    """

    name: str
    place: Place | None = None
    method: Method = Method.LEARNED
    path: PathClass = PathClass.XOR
    refusal: str = ""
    load: Load | None = None
    resident: Callable[[], dict[str, torch.Tensor]] = dict
    specs: tuple[TensorSpec, ...] = (TensorSpec("w", (8, 8), "bfloat16"),)

    @property
    def catalogue(self) -> Catalogue:
        """The canonical tensors, "n" last."""
        return Catalogue(RUN, AUDIT_KEY, (*self.specs, TensorSpec("n", (4, 8), "bfloat16")))


@dataclass(slots=True)
class TortureRuntime:
    """Implements ``NativeLoader`` for one pattern; ``state`` is for loaders that remember."""

    pattern: Pattern
    state: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plain = {"target": torch.zeros(8, 8, dtype=BF16), "neighbour": torch.zeros(4, 8, dtype=BF16)}
        self.tensors = {**plain, **self.pattern.resident()}

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """See ``NativeLoader``."""
        if self.pattern.load is not None:
            self.pattern.load(self, weights)
            return
        for name, weight in weights:
            self.place(name, weight)

    def place(self, name: str, weight: torch.Tensor) -> None:
        """Place one tensor."""
        if name == "n":
            self["neighbour"].copy_(weight)
        else:
            assert self.pattern.place is not None
            self.pattern.place(self, weight)

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.tensors[name].data

    def resident(self) -> dict[str, torch.Tensor]:
        """See ``NativeLoader``."""
        return dict(self.tensors)

    def skips(self, name: str) -> bool:
        """Nothing is skipped."""
        return False

    def refusals(self) -> dict[str, str]:
        """Nothing is known in advance."""
        return {}

    def synchronize(self) -> None:
        """Nothing to wait for."""


def zeros(**shapes: Any) -> Callable[[], dict[str, torch.Tensor]]:
    """Further resident tensors of type bfloat16, or of the dtype that ends a shape."""

    def make() -> dict[str, torch.Tensor]:
        made = {}
        for name, shape in shapes.items():
            dtype = shape[-1] if isinstance(shape[-1], torch.dtype) else BF16
            made[name] = torch.zeros([n for n in shape if not isinstance(n, torch.dtype)], dtype=dtype)
        return made

    return make


def named(*names: str, shape: tuple[int, ...] = (8, 8), dtype: str = "bfloat16") -> tuple[TensorSpec, ...]:
    """Canonical tensors of one shape."""
    return tuple(TensorSpec(name, shape, dtype) for name in names)
