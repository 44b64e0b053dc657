"""Weights in Megatron's layout: fused, padded, split over tensor-parallel ranks (DESIGN R4, section 4).

A stand-in for a trainer that needs no Megatron: the same fusions and splits, moved into canonical
tensors by the adapter's own maps, or whole by gathering and converting. A mixture of experts with the
head and expert sizes of Qwen3-30B-A3B. Shape legend: R rows and C columns of one rank's shard.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, TypeAlias

import numpy as np
import torch

from dcr.indexmap import Indices
from dcr.model import TensorSpec
from dcr_adapters.megatron.pieces import Piece, Target, piece_of

Kind: TypeAlias = Literal["column", "row", "gated", "qkv", "vocabulary", "replicated"]
PADDING = 128
"""Rows of a vocabulary are a multiple of this on every rank."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """One layer's sizes; ``vocabulary`` divides by no number of ranks, as real ones do not."""

    hidden: int
    head: int
    groups: int
    queries: int
    experts: int
    expert_rows: int
    vocabulary: int


LARGE = Sizes(hidden=2048, head=128, groups=4, queries=8, experts=16, expert_rows=768, vocabulary=32_003)
SMALL = Sizes(hidden=128, head=16, groups=4, queries=2, experts=4, expert_rows=64, vocabulary=1_003)


@dataclass(frozen=True, slots=True)
class Fused:
    """One parameter: how it is split, and the canonical tensors that its rows belong to."""

    name: str
    kind: Kind
    specs: tuple[TensorSpec, ...]
    group: tuple[int, ...] = ()
    """Rows of queries, keys and values in one query group."""

    def local_shape(self, num_ranks: int) -> tuple[int, ...]:
        """(R, C) of one rank's shard, or (R,)."""
        columns = self.specs[0].shape[1:]
        rows = sum(spec.shape[0] for spec in self.specs)
        if self.kind == "replicated":
            return (rows, *columns)
        if self.kind == "row":
            return rows, columns[0] // num_ranks
        if self.kind == "vocabulary":
            return -(-rows // (PADDING * num_ranks)) * PADDING, *columns
        return rows // num_ranks, *columns

    def pieces(self, num_ranks: int, rank: int) -> Iterator[Piece]:
        """What ``rank``'s shard contributes to each canonical tensor."""
        shape = self.local_shape(num_ranks)
        for spec, table in zip(self.specs, self._tables(shape[0], num_ranks, rank), strict=True):
            column = rank * shape[1] if self.kind == "row" else 0
            target = Target(spec.name, spec.shape, table, column=column, split=self.kind != "replicated")
            piece = piece_of(target, prod(shape[1:]))
            if piece is not None:
                yield piece

    def _tables(self, num_rows: int, num_ranks: int, rank: int) -> Iterator[Indices]:
        """Canonical row of each local row, -1 outside; one table a canonical tensor."""
        local = np.arange(num_rows, dtype=np.int64)
        if self.kind in ("row", "replicated"):
            yield local
        elif self.kind in ("column", "vocabulary"):
            rows = rank * num_rows + local
            yield np.where(rows < self.specs[0].shape[0], rows, -1)
        elif self.kind == "gated":
            half = num_rows // 2
            yield np.where(local < half, rank * half + local, -1)
            yield np.where(local >= half, rank * half + local - half, -1)
        else:
            period, start = sum(self.group), 0
            group, inside = np.divmod(rank * num_rows + local, period)
            for size in self.group:
                within = (inside >= start) & (inside < start + size)
                yield np.where(within, group * size + inside - start, -1)
                start += size

    def convert(self, shards: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Full conversion: the parameter gathered from all ranks' ``shards``, then its canonical tensors."""
        if self.kind == "replicated":
            return {self.specs[0].name: shards[0]}
        if self.kind == "gated":
            halves = zip(*(shard.chunk(2) for shard in shards), strict=True)
            return {spec.name: torch.cat(half) for spec, half in zip(self.specs, halves, strict=True)}
        whole = torch.cat(list(shards), dim=1 if self.kind == "row" else 0)
        if self.kind != "qkv":
            return {self.specs[0].name: whole[: self.specs[0].shape[0]]}
        grouped = whole.reshape(-1, sum(self.group), whole.shape[1])
        parts = torch.split(grouped, list(self.group), dim=1)
        return {
            spec.name: part.reshape(-1, whole.shape[1]) for spec, part in zip(self.specs, parts, strict=True)
        }


def parameters_of(mib: int) -> tuple[Fused, ...]:
    """As many layers as fill about ``mib`` MiB of canonical tensors; small models get small layers."""
    sizes = LARGE if mib >= 512 else SMALL
    made = [
        _one(f"{name}.weight", "vocabulary", sizes.vocabulary, sizes.hidden) for name in ("embedding", "head")
    ]
    layer = 0
    while sum(spec.num_bytes for parameter in made for spec in parameter.specs) < mib << 20:
        made += _layer(f"layers.{layer}", sizes)
        layer += 1
    return tuple(made)


def _layer(path: str, sizes: Sizes) -> Iterator[Fused]:
    hidden, query = sizes.hidden, sizes.queries * sizes.head
    group = (query, sizes.head, sizes.head)
    yield _one(f"{path}.norm.in", "replicated", hidden)
    yield Fused(
        f"{path}.qkv",
        "qkv",
        tuple(
            _spec(f"{path}.{name}", sizes.groups * rows, hidden)
            for name, rows in zip(("q", "k", "v"), group, strict=True)
        ),
        group,
    )
    yield _one(f"{path}.o", "row", hidden, sizes.groups * query)
    yield _one(f"{path}.norm.out", "replicated", hidden)
    yield _one(f"{path}.router", "replicated", sizes.experts, hidden)
    for expert in range(sizes.experts):
        name = f"{path}.experts.{expert}"
        halves = tuple(_spec(f"{name}.{half}", sizes.expert_rows, hidden) for half in ("gate", "up"))
        yield Fused(f"{name}.gate_up", "gated", halves)
        yield _one(f"{name}.down", "row", hidden, sizes.expert_rows)


def _one(name: str, kind: Kind, *shape: int) -> Fused:
    return Fused(name, kind, (_spec(name, *shape),))


def _spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "bfloat16")
