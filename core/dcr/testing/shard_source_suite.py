"""What every ShardSource must do; each implementation's test subclasses this."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from dcr.model import Bits, TensorSpec, bits_dtype
from dcr.source.detect import host_bits
from dcr.source.ports import ShardSource
from dcr.source.task import AffineTask


@dataclass(frozen=True, slots=True)
class ShardWorld:
    """One model on one world: the source of each rank, and the dense stored bits by canonical name.

    ``truth`` has every primary name, no alias; arrays are unsigned, of the canonical shape. It must
    not come from the sources' own geometry.
    """

    sources: Sequence[ShardSource]
    truth: dict[str, Bits]

    def specs(self) -> dict[str, TensorSpec]:
        """Specs of rank 0 by primary name."""
        return {spec.name: spec for spec in self.sources[0].tensors()}

    def shards(self) -> list[tuple[int, ShardSource, AffineTask]]:
        """Every (rank, source, task)."""
        return [(rank, source, task) for rank, source in enumerate(self.sources) for task in source.tasks()]


class ShardSourceContract:
    """A subclass defines the fixture ``world``, a ``ShardWorld`` (parametrized over worlds, if it likes)."""

    def test_tensors_are_equal_on_all_ranks(self, world: ShardWorld) -> None:
        """Same specs in the same order, and exactly those of the dense model."""
        first = world.sources[0].tensors()
        assert all(source.tensors() == first for source in world.sources)
        assert [spec.name for spec in first] == list(dict.fromkeys(spec.name for spec in first))
        assert {spec.name: (spec.shape, bits_dtype(spec.dtype)) for spec in first} == {
            name: (bits.shape, bits.dtype) for name, bits in world.truth.items()
        }

    def test_names_and_aliases_are_one_name_space(self, world: ShardWorld) -> None:
        """No alias is a primary name or named twice."""
        names = list(chain.from_iterable((spec.name, *spec.aliases) for spec in world.specs().values()))
        assert len(names) == len(set(names))

    def test_tasks_agree_with_their_tensor(self, world: ShardWorld) -> None:
        """Name, dtype, aliases and sizes are those of the spec; the map crops and merges nothing."""
        specs = world.specs()
        for _, _, task in world.shards():
            spec = specs[task.name]
            assert (task.dtype, task.aliases) == (spec.dtype, spec.aliases)
            assert (task.map.src_size, task.map.dst_size) == (task.num_elements, spec.num_elements)
            assert task.map.is_complete
            assert task.map.is_injective

    def test_keys_are_unique_on_a_rank_and_stable(self, world: ShardWorld) -> None:
        """A tracker finds its shard again by key."""
        for source in world.sources:
            keys = [task.key for task in source.tasks()]
            assert len(keys) == len(set(keys))
            assert keys == [task.key for task in source.tasks()]

    def test_replicas_name_each_other(self, world: ShardWorld) -> None:
        """Sorted ranks, the own one included; each holds a task with the same name, map and replicas."""
        held = {(rank, task.name, task.map, task.replicas) for rank, _, task in world.shards()}
        for rank, _, task in world.shards():
            if task.num_elements:
                assert list(task.replicas) == sorted(set(task.replicas))
                assert rank in task.replicas
                assert all((peer, task.name, task.map, task.replicas) in held for peer in task.replicas)

    def test_every_element_has_one_replica_group(self, world: ShardWorld) -> None:
        """With one task per replica group, canonical elements are covered exactly once."""
        seen: dict[str, list[np.ndarray]] = {name: [] for name in world.truth}
        for rank, _, task in world.shards():
            if task.num_elements and rank == task.replicas[0]:
                seen[task.name].append(task.map.to_far(np.arange(task.num_elements, dtype=np.int64)))
        for name, bits in world.truth.items():
            covered = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *seen[name]]))
            np.testing.assert_array_equal(covered, np.arange(bits.size), err_msg=name)

    def test_what_is_read_is_the_dense_truth(self, world: ShardWorld) -> None:
        """Every rank's bits, replicas included, are the dense tensor's at the mapped indices."""
        for rank, source, task in world.shards():
            read = source.read(task)
            assert tuple(read.shape) == (task.num_elements,)
            bits = host_bits(read)
            assert bits.dtype == bits_dtype(task.dtype)
            assert bits.flags.c_contiguous
            far = task.map.to_far(np.arange(task.num_elements, dtype=np.int64))
            want = world.truth[task.name].reshape(-1)[far]
            np.testing.assert_array_equal(bits, want, err_msg=f"{task.name} on rank {rank}")

    def test_counters_stand_still_without_writes(self, world: ShardWorld) -> None:
        """Reading is no write."""
        for source in world.sources:
            before = source.counters()
            for task in source.tasks():
                source.read(task)
            assert source.counters() == before
