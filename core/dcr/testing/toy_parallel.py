"""A small tensor- and expert-parallel model: what each rank of an instance holds of it.

Column and row shards, norms on every rank, one key-value head for all ranks, a fused projection of which
a part is replicated, experts on single ranks and one on several, an embedding padded to the ranks.
``ToyParallelRuntime`` is one rank of it as a native loader; ``dcr.testing.toy_rank`` the same as a port.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dcr.model import Catalogue, RunId, TensorSpec

RUN: RunId = "6" * 32
AUDIT_KEY = "fedcba9876543210fedcba9876543210"
VOCABULARY, HIDDEN, HEADS_ROWS, KV_ROWS, SHARED_ROWS = 10, 12, 12, 2, 3

TENSORS = (
    TensorSpec("embed.weight", (VOCABULARY, HIDDEN), "bfloat16", aliases=("head.weight",)),
    TensorSpec("q.weight", (HEADS_ROWS, HIDDEN), "bfloat16"),
    TensorSpec("k.weight", (KV_ROWS, HIDDEN), "bfloat16"),
    TensorSpec("o.weight", (HIDDEN, HEADS_ROWS), "bfloat16"),
    TensorSpec("norm.weight", (HIDDEN,), "bfloat16"),
    TensorSpec("mixer.in.weight", (HEADS_ROWS + SHARED_ROWS, HIDDEN), "bfloat16"),
    TensorSpec("expert.0.weight", (3, HIDDEN), "bfloat16"),
    TensorSpec("expert.1.weight", (3, HIDDEN), "bfloat16"),
    TensorSpec("scale", (), "float32"),
)


def catalogue() -> Catalogue:
    """Canonical tensors of the toy model."""
    return Catalogue(RUN, AUDIT_KEY, TENSORS)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows and columns [first, stop) of a canonical matrix, and the resident tensor that holds them.

    They lie from row ``at_row`` of ``target``, all its columns. A vector is a matrix of one row.
    """

    rows: tuple[int, int]
    columns: tuple[int, int]
    target: str
    at_row: int = 0


def blocks(rank: int, num_ranks: int) -> dict[str, tuple[Block, ...]]:
    """What ``rank`` holds, by canonical name; absent names lie elsewhere or nowhere.

    ``num_ranks`` divides 12. The last expert is on every rank, and twice on rank 0, as a balancer of
    experts would have it.
    """
    share = HEADS_ROWS // num_ranks
    mine, whole = (rank * share, (rank + 1) * share), (0, HIDDEN)
    vocabulary = -(-VOCABULARY // num_ranks)
    first, stop = rank * vocabulary, min((rank + 1) * vocabulary, VOCABULARY)
    placed = {
        "q.weight": (Block(mine, whole, "qk"),),
        "k.weight": (Block((0, KV_ROWS), whole, "qk", share),),
        "o.weight": (Block((0, HIDDEN), mine, "o"),),
        "norm.weight": (Block((0, 1), whole, "norm"),),
        "mixer.in.weight": (
            Block(mine, whole, "in"),
            Block((HEADS_ROWS, HEADS_ROWS + SHARED_ROWS), whole, "in", share),
        ),
        "expert.1.weight": (Block((0, 3), whole, "experts", 3 if rank == 0 else 0),),
        "scale": (Block((0, 1), (0, 1), "scale"),),
    }
    if first < stop:
        placed["embed.weight"] = (Block((first, stop), whole, "embed"),)
    if rank == 0:
        placed["expert.0.weight"] = (Block((0, 3), whole, "experts"),)
        placed["expert.1.weight"] += (Block((0, 3), whole, "experts", 6),)
    return placed


def resident_shapes(rank: int, num_ranks: int) -> dict[str, tuple[int, int]]:
    """Rows and columns of each resident tensor; the embedding is padded."""
    share = HEADS_ROWS // num_ranks
    return {
        "embed": (-(-VOCABULARY // num_ranks), HIDDEN),
        "qk": (share + KV_ROWS, HIDDEN),
        "o": (HIDDEN, share),
        "norm": (1, HIDDEN),
        "in": (share + SHARED_ROWS, HIDDEN),
        "experts": (9 if rank == 0 else 3, HIDDEN),
        "scale": (1, 1),
    }


class ToyParallelRuntime:
    """One rank as a ``NativeLoader``; ``rebuild`` moves its storage as sleep and wake would."""

    def __init__(self, rank: int, num_ranks: int) -> None:
        self.catalogue = catalogue()
        self._blocks = blocks(rank, num_ranks)
        self._tensors = {
            name: torch.nn.Parameter(
                torch.zeros(shape, dtype=torch.float32 if name == "scale" else torch.bfloat16),
                requires_grad=False,
            )
            for name, shape in resident_shapes(rank, num_ranks).items()
        }

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy what lies here; other ranks' tensors are dropped. Raises ValueError for an unknown name."""
        known = self.catalogue.by_name()
        for name, weight in weights:
            if name not in known:
                raise ValueError(f"unknown weight {name}")
            matrix = weight.reshape(1, -1) if weight.ndim < 2 else weight
            for block in self._blocks.get(name, ()):
                (top, bottom), (left, right) = block.rows, block.columns
                target = self._tensors[block.target].data[block.at_row : block.at_row + bottom - top]
                target.copy_(matrix[top:bottom, left:right])
            if name == "embed.weight":
                held = sum(b.rows[1] - b.rows[0] for b in self._blocks.get(name, ()))
                self._tensors["embed"].data[held:].fill_(0)

    def resident(self) -> dict[str, torch.Tensor]:
        """See ``NativeLoader``."""
        return dict(self._tensors)

    def skips(self, name: str) -> bool:
        """The tied head shares the embedding."""
        return name == "head.weight"

    def refusals(self) -> dict[str, str]:
        """None."""
        return {}

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def rebuild(self) -> None:
        """The same contents in new storage."""
        for parameter in self._tensors.values():
            parameter.data = parameter.data.clone()
