"""Every element has one owner, shares are equal, and each rank finds its own without asking (R1)."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from dcr.errors import ConfigError
from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec
from dcr.source.detect import Candidate, host_bits
from dcr.source.ownership import stable_hash
from dcr.source.shares import OwnedShards, Slab, divide
from dcr.source.task import AffineTask

sizes = st.lists(st.one_of(st.integers(0, 40), st.integers(0, 60_000)), max_size=12)


def line(counts: list[int], width: int = 2) -> list[Slab]:
    return [Slab((stable_hash(str(i)), str(i), ""), count, width) for i, count in enumerate(counts)]


class Replicated:
    """Tensors of random bits, all of them on every rank of ``replicas``, permuted at the canonical side."""

    def __init__(self, counts: list[int], replicas: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        self.bits = [rng.integers(0, 1 << 16, count, dtype=np.uint16) for count in counts]
        self._tasks = [
            AffineTask(
                f"t{i}", f"t{i}", "bfloat16", count, IndexMap.contiguous(count, 5, count + 7), replicas
            )
            for i, count in enumerate(counts)
        ]
        self._replicas = replicas

    def tensors(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(task.name, (task.map.dst_size,), "bfloat16") for task in self._tasks)

    def tasks(self) -> list[AffineTask]:
        return self._tasks

    def read(self, task: AffineTask) -> Candidate:
        return self.bits[int(task.name[1:])]

    def counters(self) -> str:
        return ""

    def canonical(self, shards: OwnedShards, into: dict[str, list[int]]) -> dict[str, Bits]:
        """What the owned pieces give, with how often each canonical element was given added to ``into``."""
        found: dict[str, Bits] = {}
        for task in shards.tasks():
            far = task.map.to_far(np.arange(task.num_elements, dtype=np.int64))
            whole = found.setdefault(task.name, np.zeros(task.map.dst_size, dtype=np.uint16))
            whole[far] = host_bits(shards.read(task))
            for at in far.tolist():
                into[task.name][at] += 1
        return found


@given(sizes, st.integers(1, 9))
def test_ranges_cover_every_element_once(counts: list[int], num_parts: int) -> None:
    covered = [np.zeros(count, dtype=int) for count in counts]
    for piece in divide(line(counts), num_parts):
        assert 0 <= piece.part < num_parts
        covered[piece.index][piece.start : piece.stop] += 1
    assert all((one == 1).all() for one in covered)


@given(st.lists(st.integers(0, 3_000_000), min_size=1, max_size=30), st.integers(2, 33))
def test_shares_are_equal_to_a_64th_and_alignment(counts: list[int], num_parts: int) -> None:
    owned = [0] * num_parts
    for piece in divide(line(counts), num_parts):
        owned[piece.part] += piece.stop - piece.start
    mean = sum(counts) / num_parts
    assert max(owned) <= mean * (1 + 1 / 64) + 1024


@given(
    sizes,
    st.sampled_from([(0,), (0, 1), (1, 4, 6), (0, 1, 2, 3)]),
    st.sampled_from(["balanced", "published"]),
)
def test_replicas_agree_and_read_what_they_own(
    counts: list[int], replicas: tuple[int, ...], ownership: str
) -> None:
    times = {f"t{i}": [0] * (count + 7) for i, count in enumerate(counts)}
    whole = {f"t{i}": np.zeros(count + 7, dtype=np.uint16) for i, count in enumerate(counts)}
    for rank in replicas:
        source = Replicated(counts, replicas)
        shards = OwnedShards(source, rank, ownership=ownership)
        for name, bits in source.canonical(shards, times).items():
            whole[name] += bits
    for i, count in enumerate(counts):
        assert times[f"t{i}"] == [0] * 5 + [1] * count + [0] * 2
        np.testing.assert_array_equal(whole[f"t{i}"][5 : 5 + count], Replicated(counts, replicas).bits[i])


def test_a_plan_of_many_experts_is_balanced_at_every_degree() -> None:
    """Sizes of a mixture of 48 layers, 128 experts: few large tensors among very many small ones."""
    layer = [2048 * 4096, 2048 * 512, 2048 * 512, 4096 * 2048, 2048, 128, 128, 2048 * 128]
    counts = [151_936 * 2048] * 2 + [size for _ in range(48) for size in [*layer, *([768 * 2048] * 384)]]
    for num_parts in (4, 8, 32):
        owned = [0] * num_parts
        ranges = divide(line(counts), num_parts)
        for piece in ranges:
            owned[piece.part] += piece.stop - piece.start
        assert max(owned) / (sum(owned) / num_parts) <= 1.05
        assert len(ranges) <= len(counts) + num_parts - 1


def test_another_ownership_is_refused() -> None:
    with pytest.raises(ConfigError, match="ownership: 'fair' is not a choice; accepted: balanced, published"):
        OwnedShards(Replicated([3], (0,)), 0, ownership="fair")
