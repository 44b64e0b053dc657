"""Whole loops of the torture patterns: loaders that treat a tensor by what else comes along."""

from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch

from dcr.testing.torture import Load, TortureRuntime

Weights: TypeAlias = Iterable[tuple[str, torch.Tensor]]


def concatenates(r: TortureRuntime, weights: Weights) -> None:
    """Three tensors become one, once all are there."""
    waiting: dict[str, torch.Tensor] = {}
    for name, weight in weights:
        if name == "n":
            r.place(name, weight)
            continue
        waiting[name] = weight
        if len(waiting) == 3:
            r["joined"].copy_(torch.cat([waiting[part] for part in ("w", "k", "v")]))
            waiting.clear()


def derives_cache(r: TortureRuntime, weights: Weights) -> None:
    """A further copy is made of what was loaded."""
    for name, weight in weights:
        r.place(name, weight)
    r["cache"].copy_(r["target"].t())


def derives_unlisted(r: TortureRuntime, weights: Weights) -> None:
    """A copy of what was loaded is kept in memory that nobody lists."""
    for name, weight in weights:
        r.place(name, weight)
    r.state["cache"] = r["target"].t().contiguous()


def batches(r: TortureRuntime, weights: Weights) -> None:
    """Reads the whole stream first."""
    for name, weight in list(weights):
        r.place(name, weight)


def fills_from_resident(r: TortureRuntime, weights: Weights) -> None:
    """A fill's value is made of what was loaded."""
    for name, weight in weights:
        r.place(name, weight)
    r["row"].fill_(r["target"].abs().max())


def waits(compute: Callable[[torch.Tensor], torch.Tensor]) -> Load:
    """Loads "w" and "k" when both are there."""

    def load(r: TortureRuntime, weights: Weights) -> None:
        waiting: dict[str, torch.Tensor] = {}
        for name, weight in weights:
            if name == "n":
                r.place(name, weight)
                continue
            waiting[name] = weight
            if len(waiting) == 2:
                r["target"].copy_(compute(waiting["w"]))
                r["second"].copy_(waiting["k"])
                waiting.clear()

    return load


def in_order_of_arrival(r: TortureRuntime, weights: Weights) -> None:
    """Where a tensor goes depends on how many came before it."""
    slots = iter(["target", "second"])
    for name, weight in weights:
        if name == "n":
            r.place(name, weight)
        else:
            r[next(slots)].copy_(-torch.exp(weight))


def replica_beside(r: TortureRuntime, weights: Weights) -> None:
    """The assertion cuts the first stream, and "k" has a second copy only where "w" was before it."""
    seen = set()
    for name, weight in weights:
        seen.add(name)
        if name == "n":
            r.place(name, weight)
        elif name == "w":
            assert not bool(torch.isnan(weight.float()).any())
            r["target"].copy_(weight)
        else:
            r["third"].copy_(weight)
            if "w" in seen:
                r["second"].copy_(weight)


def stops_early(r: TortureRuntime, weights: Weights) -> None:
    """Leaves the stream after its first tensor."""
    for name, weight in weights:
        r.place(name, weight)
        return
