"""The ShardSource suite passes on a right world and fails on each seeded mistake."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec
from dcr.source.task import AffineTask
from dcr.testing.shard_source_suite import ShardSourceContract, ShardWorld

TESTS = [name for name in vars(ShardSourceContract) if name.startswith("test_")]
TRUTH: dict[str, Bits] = {"a": np.arange(6, dtype="<u2").reshape(3, 2), "b": np.array(7, dtype="<u8")}
SPECS = (TensorSpec("a", (3, 2), "bfloat16", ("c",)), TensorSpec("b", (), "int64"))


@dataclass
class Source:
    specs: tuple[TensorSpec, ...]
    held: list[AffineTask]
    bits: dict[str, Bits]
    reads: int = 0
    counts_reads: bool = False

    def tensors(self) -> tuple[TensorSpec, ...]:
        return self.specs

    def tasks(self) -> list[AffineTask]:
        return self.held

    def read(self, task: AffineTask) -> Bits:
        self.reads += 1
        return self.bits[task.key]

    def counters(self) -> str:
        return str(self.reads if self.counts_reads else 0)


def right_world() -> list[Source]:
    """Rows 0-1 of a on rank 0, row 2 on rank 1, b on both."""
    sources = []
    for rank, (rows, start) in enumerate(((2, 0), (1, 2))):
        block = IndexMap.from_block((rows, 2), (start, 0), (3, 2))
        tasks = [
            AffineTask("a", "a", "bfloat16", rows * 2, block, (rank,), ("c",)),
            AffineTask("b", "b", "int64", 1, IndexMap.identity(1), (0, 1)),
        ]
        bits = {"a": TRUTH["a"][start : start + rows].reshape(-1).copy(), "b": TRUTH["b"].reshape(1).copy()}
        sources.append(Source(SPECS, tasks, bits))
    return sources


def failing(sources: list[Source]) -> set[str]:
    found = set()
    for name in TESTS:
        try:
            getattr(ShardSourceContract(), name)(ShardWorld(sources, TRUTH))
        except AssertionError:
            found.add(name)
    return found


def change(index: int, **fields: object) -> Callable[[list[Source]], None]:
    """Change fields of a task of rank 1."""

    def act(sources: list[Source]) -> None:
        sources[1].held[index] = replace(sources[1].held[index], **fields)  # type: ignore[arg-type]

    return act


def set_specs(*specs: TensorSpec, ranks: tuple[int, ...] = (0, 1)) -> Callable[[list[Source]], None]:
    def act(sources: list[Source]) -> None:
        for rank in ranks:
            sources[rank].specs = specs

    return act


def flip_bit(sources: list[Source]) -> None:
    sources[1].bits["b"][0] ^= np.uint64(1 << 63)


def widen(sources: list[Source]) -> None:
    sources[1].bits["a"] = sources[1].bits["a"].astype("<u4")


def drop(sources: list[Source]) -> None:
    del sources[1].held[0]


def count_reads(sources: list[Source]) -> None:
    sources[1].counts_reads = True


MISTAKES: dict[str, tuple[Callable[[list[Source]], None], str]] = {
    "a bit of a replica": (flip_bit, "test_what_is_read_is_the_dense_truth"),
    "wider bits": (widen, "test_what_is_read_is_the_dense_truth"),
    "a lost shard": (drop, "test_every_element_has_one_replica_group"),
    "a shifted shard": (
        change(0, map=IndexMap.contiguous(2, 2, 6)),
        "test_every_element_has_one_replica_group",
    ),
    "a cropped shard": (change(0, map=IndexMap((), 2, 6)), "test_tasks_agree_with_their_tensor"),
    "a replica unaware": (change(1, replicas=(1,)), "test_replicas_name_each_other"),
    "a foreign replica": (change(0, replicas=(0, 1)), "test_replicas_name_each_other"),
    "unsorted replicas": (change(1, replicas=(1, 0)), "test_replicas_name_each_other"),
    "one key twice": (change(1, key="a"), "test_keys_are_unique_on_a_rank_and_stable"),
    "another dtype": (change(0, dtype="float16"), "test_tasks_agree_with_their_tensor"),
    "lost aliases": (change(0, aliases=()), "test_tasks_agree_with_their_tensor"),
    "another order on one rank": (
        set_specs(*reversed(SPECS), ranks=(1,)),
        "test_tensors_are_equal_on_all_ranks",
    ),
    "an alias that is a tensor": (
        set_specs(replace(SPECS[0], aliases=("b",)), SPECS[1]),
        "test_names_and_aliases_are_one_name_space",
    ),
    "reads that count as writes": (count_reads, "test_counters_stand_still_without_writes"),
}


def test_a_right_world_passes() -> None:
    assert failing(right_world()) == set()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_is_found(mistake: str) -> None:
    sources = right_world()
    make, expected = MISTAKES[mistake]
    make(sources)
    assert expected in failing(sources)


def test_every_test_of_the_suite_can_fail() -> None:
    assert {expected for _, expected in MISTAKES.values()} == set(TESTS)
