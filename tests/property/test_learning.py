"""Random loaders made of views, transposes, narrows, clones and casts: learned as their dense loads do."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from dcr.model import Catalogue, TensorSpec
from dcr.receiver.rank import Method
from dcr.testing.learning_suite import check_placement
from dcr.testing.torture import BF16, Pattern, TortureRuntime
from dcr.testing.toy_runtime import AUDIT_KEY, RUN


@dataclass(frozen=True, slots=True)
class Step:
    """One view operation; numbers are taken modulo what the tensor allows."""

    kind: str
    dim: int
    number: int

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.numel() == 0:
            return tensor
        dim = self.dim % tensor.dim()
        size = tensor.shape[dim]
        stepped: torch.Tensor = _STEPS[self.kind](tensor, dim, size, self.number)
        return stepped


def _narrow(tensor: torch.Tensor, dim: int, size: int, number: int) -> torch.Tensor:
    start = number % size
    return tensor.narrow(dim, start, size - start)


_STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "transpose": lambda t, dim, size, number: t.transpose(dim, number % t.dim()),
    "narrow": _narrow,
    "head": lambda t, dim, size, number: t.narrow(dim, 0, 1 + number % size),
    "stride": lambda t, dim, size, number: t[(slice(None),) * dim + (slice(None, None, 1 + number % 3),)],
    "select": lambda t, dim, size, number: t.select(dim, number % size),
    "unsqueeze": lambda t, dim, size, number: t.unsqueeze(dim),
    "split": lambda t, dim, size, number: t.unflatten(dim, (2, size // 2)) if size % 2 == 0 else t,
    "window": lambda t, dim, size, number: t.unfold(dim, min(2, size), 1 + number % 2),
    "clone": lambda t, dim, size, number: t.clone(),
    "contiguous": lambda t, dim, size, number: t.contiguous(),
    "float": lambda t, dim, size, number: t.float(),
    "repeat": lambda t, dim, size, number: t.unsqueeze(0).expand(1 + number % 3, *t.shape),
}  # fmt: skip

SAFE = ("transpose", "narrow", "head", "stride", "select", "unsqueeze", "split")


def steps(kinds: tuple[str, ...]) -> st.SearchStrategy[list[Step]]:
    return st.lists(st.builds(Step, st.sampled_from(kinds), st.integers(0, 3), st.integers(0, 7)), max_size=4)


@dataclass(frozen=True, slots=True)
class Plan:
    """One copy: ``source`` steps on the canonical tensor ``name``, into a view of ``storage`` at ``room``."""

    name: str
    source: tuple[Step, ...]
    room: tuple[Step, ...]
    wide: bool


@st.composite
def plans(draw: st.DrawFn) -> list[Plan]:
    names = draw(st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=5))
    return [
        Plan(name, tuple(draw(steps(tuple(_STEPS)))), tuple(draw(steps(SAFE))), draw(st.booleans()))
        for name in names
    ]


SPECS = {
    "a": TensorSpec("a", (6, 4), "bfloat16"),
    "b": TensorSpec("b", (3, 2, 4), "bfloat16"),
    "c": TensorSpec("c", (7,), "bfloat16"),
}
FILLER = TensorSpec("n", (4, 8), "bfloat16")


class PlannedRuntime(TortureRuntime):
    """Copies by plans, in order; each plan has a resident tensor of its own, of which it fills a view."""

    def __init__(self, plans: list[Plan]) -> None:
        super().__init__(Pattern("planned"))
        self.plans = plans
        for i, plan in enumerate(plans):
            room = torch.zeros(9, 9, 64, dtype=torch.float32 if plan.wide else BF16)
            self.tensors[f"room{i}"] = room

    @override
    def place(self, name: str, weight: torch.Tensor) -> None:
        for i, plan in enumerate(self.plans):
            if plan.name == name:
                source = weight
                for step in plan.source:
                    source = step(source)
                self.target(i, plan, source.shape).copy_(source)

    def target(self, i: int, plan: Plan, shape: torch.Size) -> torch.Tensor:
        """A view of ``shape``, permuted and strided by the plan, or the front of the room."""
        room = self.tensors[f"room{i}"]
        for step in plan.room:
            room = step(room)
        if room.dim() == len(shape) and all(n <= m for n, m in zip(shape, room.shape, strict=True)):
            return room[tuple(slice(0, n) for n in shape)]
        return self.tensors[f"room{i}"].view(-1)[: shape.numel()].view(shape)


@given(plans())
def test_random_loaders_are_learned_as_they_load(plans: list[Plan]) -> None:
    catalogue = Catalogue(
        RUN, AUDIT_KEY, (*(SPECS[name] for name in sorted({p.name for p in plans})), FILLER)
    )
    table = check_placement(lambda: PlannedRuntime(plans), catalogue)
    views_only = {"transpose", "narrow", "head", "stride", "select", "unsqueeze", "split"}
    for name, path in table.paths.items():
        mine = [plan for plan in plans if plan.name == name]
        if mine and all(step.kind in views_only for plan in mine for step in plan.source):
            assert path.method is Method.LEARNED
