"""Trackers through crashes, damage and full disks (DESIGN R3, P9)."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dcr import observe
from dcr.errors import ConfigError, IntegrityError, StoreError
from dcr.indexmap import IndexMap
from dcr.model import Bits, TensorSpec
from dcr.source import UNPROVEN, AffineTask, Baseline, owned
from dcr.source.change import Change, WholeChange, find_change
from dcr.source.digests import DigestTable, TaskDigests, digest_task
from dcr.testing.toy_trainer import Placement, Tensors, ToySource, ToyTensor, mutate, random_bits

KEY = "cd" * 16
TENSORS = [
    ToyTensor(TensorSpec("embed", (40, 3), "bfloat16", aliases=("head",)), Placement.ROWS),
    ToyTensor(TensorSpec("norm", (7,), "float32")),
    ToyTensor(TensorSpec("proj", (6, 5), "float8_e4m3fn"), Placement.COLUMNS),
]


class Rig:
    """One rank's source and trackers, at v0 and on the way to v1."""

    def __init__(self, directory: Path) -> None:
        rng = np.random.default_rng(7)
        self.directory = directory
        self.old = random_bits(TENSORS, rng)
        self.new = mutate(self.old, 0.3, rng)
        self.source = ToySource(0, 1, TENSORS, self.old)
        self.tasks = owned(self.source.tasks(), 0)
        self.baseline = Baseline.create(directory, self.tasks, self.source.read, audit_key=KEY)
        self.source.set_all(self.new)

    def load(self) -> Baseline:
        self.baseline = Baseline.load(self.directory, self.tasks, audit_key=KEY)
        return self.baseline

    def digests(self) -> DigestTable:
        return {task.key: digest_task(KEY, task, self.source.read(task)) for task in self.tasks}

    def changes(self) -> Iterator[Change]:
        for task in self.tasks:
            observe.point("owner.fold_in.task.before", key=task.key)
            yield find_change(task, self.source.read(task), self.baseline.bits(task))
            observe.point("owner.fold_in.task.after", key=task.key)

    def fold(self) -> None:
        self.baseline.fold_in(1, self.digests(), self.changes())

    def rebuild(self, version: int) -> list[str]:
        """Bring the trackers to ``version`` from the oracle; returns the names that were asked for."""
        asked: list[str] = []

        def replayed(names: Sequence[str]) -> Tensors:
            asked.extend(names)
            return {name: (self.old, self.new)[version][name] for name in names}

        self.baseline.bring_to(version, replayed)
        return asked

    def holds(self, version: int) -> bool:
        wanted = ToySource(0, 1, TENSORS, (self.old, self.new)[version])
        return self.baseline.version == version and all(
            np.array_equal(self.baseline.bits(task), wanted.read(task)) for task in self.tasks
        )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@contextmanager
def crash_at(name: str, nth: int) -> Iterator[None]:
    seen = 0

    def listener(event: observe.Event) -> None:
        nonlocal seen
        seen += event.name == name
        if event.name == name and seen == nth:
            raise KeyboardInterrupt

    with observe.listening(listener), pytest.raises(KeyboardInterrupt):
        yield


def test_create_fold_in_and_load(rig: Rig) -> None:
    assert rig.holds(0)
    rig.fold()
    assert rig.holds(1)
    rig.fold()  # idempotent
    rig.load()
    assert rig.holds(1)
    assert rig.rebuild(1) == []


def test_trackers_take_the_size_of_the_shards(rig: Rig) -> None:
    owned_bytes = sum(rig.baseline.bits(task).nbytes for task in rig.tasks)
    assert (rig.directory / "trackers.bin").stat().st_size <= owned_bytes + 64 * len(rig.tasks)


def test_bits_are_read_only(rig: Rig) -> None:
    with pytest.raises(ValueError, match="read-only"):
        rig.baseline.bits(rig.tasks[0])[0] = 1


@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("where", ["before", "after"])
def test_crash_between_tasks_is_proven_task_by_task(rig: Rig, where: str, nth: int) -> None:
    with crash_at(f"owner.fold_in.task.{where}", nth):
        rig.fold()
    assert rig.baseline.version == UNPROVEN  # this process must not compare against half a version either
    done = nth - 1 if where == "before" else nth
    rig.load()
    assert rig.baseline.version == {0: 0, 3: 1}.get(done, UNPROVEN)
    assert rig.baseline.stale(1) == tuple(task.key for task in rig.tasks[done:])
    assert rig.baseline.stale(0) == tuple(task.key for task in rig.tasks[:done])
    assert rig.rebuild(1) == [task.name for task in rig.tasks[done:]]
    assert rig.holds(1)
    rig.load()
    assert rig.holds(1)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_interrupted_fold_in_is_finished_by_the_same_call(rig: Rig, nth: int) -> None:
    with crash_at("owner.fold_in.task.after", nth):
        rig.fold()
    rig.fold()
    assert rig.holds(1)
    rig.load()
    assert rig.holds(1)


def test_task_torn_in_the_middle_is_named_and_rebuilt(rig: Rig) -> None:
    with crash_at("owner.fold_in.task.before", 2):
        rig.fold()
    torn = rig.tasks[1]
    changed = np.flatnonzero(rig.old[torn.name] != rig.new[torn.name])
    view = rig.baseline._file.view(torn)
    view[changed[0]] = rig.new[torn.name][changed[0]]  # only part of the task reached the file
    rig.load()
    assert torn.key in rig.baseline.stale(0)
    assert torn.key in rig.baseline.stale(1)
    with pytest.raises(IntegrityError, match="cannot fold version 2 into trackers of version -1"):
        rig.baseline.fold_in(2, {}, [])
    assert torn.name in rig.rebuild(1)
    assert rig.holds(1)


def test_tracker_torn_in_this_process_is_overwritten_and_proven_whole(rig: Rig) -> None:
    with crash_at("owner.fold_in.task.before", 2):
        rig.fold()
    task = rig.tasks[1]
    rig.baseline._digests.pop(task.key)  # as if the write itself had failed
    rig.baseline._file.view(task)[:] = 0
    rig.fold()
    assert rig.holds(1)


def test_other_bits_than_announced_never_reach_a_tracker(rig: Rig) -> None:
    digests = rig.digests()
    rig.source.set("norm", rig.old["norm"] ^ np.uint32(1))
    with pytest.raises(IntegrityError, match=r"'norm' is not what was committed.*written"):
        rig.baseline.fold_in(1, digests, rig.changes())
    rig.load()
    assert rig.baseline.stale(1) == ("norm", "proj")
    assert rig.baseline.stale(0) == ("embed",)


class WrittenTooEarly(WholeChange):
    """The trainer's next step begins between the proof and the write."""

    def digests(self, audit_key: str, before: TaskDigests) -> TaskDigests:  # type: ignore[explicit-override]  # typing.override: 3.12
        found = WholeChange.digests(self, audit_key, before)
        self.new[0] ^= 1
        return found


def test_weights_that_are_written_while_they_are_folded_in_whole_are_noticed(rig: Rig) -> None:
    digests = rig.digests()
    live = {task.key: np.array(rig.source.read(task)) for task in rig.tasks}
    changes = (WrittenTooEarly(task, live[task.key], task.num_elements) for task in rig.tasks)
    with pytest.raises(IntegrityError, match="torn"):
        rig.baseline.fold_in(1, digests, changes)
    assert rig.baseline.version == UNPROVEN
    assert rig.rebuild(1) == sorted(task.name for task in rig.tasks)
    assert rig.holds(1)


def test_fold_in_without_a_task_is_refused(rig: Rig) -> None:
    with pytest.raises(IntegrityError, match=r"left out tasks \['proj'\]"):
        rig.baseline.fold_in(1, rig.digests(), list(rig.changes())[:2])


def test_versions_are_folded_one_by_one(rig: Rig) -> None:
    with pytest.raises(IntegrityError, match="cannot fold version 2 into trackers of version 0"):
        rig.baseline.fold_in(2, rig.digests(), rig.changes())
    assert rig.holds(0)


@pytest.mark.parametrize("position", range(0, 400, 13))
def test_every_damaged_index_means_rebuild(rig: Rig, position: int) -> None:
    path = rig.directory / "trackers.json"
    data = bytearray(path.read_bytes())
    data[position % len(data)] ^= 0x04
    path.write_bytes(data)
    assert rig.load().version == UNPROVEN
    assert rig.rebuild(0) == ["embed", "norm", "proj"]
    assert rig.load().version == 0


@pytest.mark.parametrize("length", [0, 1, 40, 200])
def test_truncated_index_and_missing_files_mean_rebuild(rig: Rig, length: int) -> None:
    index, trackers = rig.directory / "trackers.json", rig.directory / "trackers.bin"
    index.write_bytes(index.read_bytes()[:length])
    assert rig.load().version == UNPROVEN
    rig.rebuild(1)
    os.truncate(trackers, 100)
    assert rig.load().version == UNPROVEN
    rig.rebuild(1)
    trackers.unlink()
    assert rig.load().version == UNPROVEN
    rig.rebuild(1)
    assert rig.holds(1)
    index.unlink()
    assert rig.load().version == UNPROVEN


def test_flipped_tracker_byte_is_found(rig: Rig) -> None:
    path = rig.directory / "trackers.bin"
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    rig.load()
    assert rig.baseline.stale(0) == ("embed",)
    assert rig.rebuild(0) == ["embed"]
    assert rig.holds(0)


def test_other_layout_or_key_proves_nothing(rig: Rig) -> None:
    fewer = Baseline.load(rig.directory, rig.tasks[:2], audit_key=KEY)
    assert fewer.version == UNPROVEN
    rig.rebuild(0)
    assert Baseline.load(rig.directory, rig.tasks, audit_key="ef" * 16).version == UNPROVEN


def test_archive_that_disagrees_with_what_is_known_is_refused(rig: Rig) -> None:
    rig.fold()
    rig.baseline._file.view(rig.tasks[0])[0] ^= 1
    rig.load()
    with pytest.raises(IntegrityError, match="'embed' rebuilt from the archive has other bits"):
        rig.baseline.bring_to(1, lambda names: {name: rig.old[name] for name in names})
    with pytest.raises(IntegrityError, match="the archive's 'embed' is uint16"):
        rig.baseline.bring_to(1, lambda names: {name: rig.new[name][:3] for name in names})
    assert rig.baseline.version == UNPROVEN
    assert rig.rebuild(1) == ["embed"]


def test_pending_version_is_announced_again_after_a_full_disk(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError):
            rig.fold()
    assert rig.holds(0)
    with crash_at("owner.fold_in.task.after", 2):
        rig.fold()
    rig.load()
    assert rig.baseline.stale(1) == ("proj",)


@pytest.mark.parametrize("call", ["fsync", "posix_fallocate"])
def test_full_disk_is_a_store_error_and_nothing_is_lost(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        if call == "fsync":
            with pytest.raises(StoreError, match="No space left on device"):
                rig.fold()
        with pytest.raises(StoreError, match=r"cannot .* No space left on device"):
            Baseline.create(rig.directory / "other", rig.tasks, rig.source.read, audit_key=KEY)
    rig.fold()
    assert rig.holds(1)
    assert rig.load().version == 1


def test_crash_before_the_final_index_is_read_as_the_new_version(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Baseline, "_hold", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            rig.fold()
    rig.load()
    assert rig.holds(1)
    assert not rig.rebuild(1)


def test_wrong_width_is_refused_before_anything_is_written(rig: Rig, tmp_path: Path) -> None:
    def wide(task: AffineTask) -> np.ndarray:
        return np.zeros(task.num_elements, np.uint32)

    with pytest.raises(ConfigError, match=r"version 0 of task 'embed' \(bfloat16\) must be uint16 \[120\]"):
        Baseline.create(tmp_path / "new", rig.tasks, wide, audit_key=KEY)


def test_rank_without_tasks(tmp_path: Path) -> None:
    baseline = Baseline.create(tmp_path, [], lambda task: np.zeros(0, np.uint8), audit_key=KEY)
    baseline.fold_in(1, {}, [])
    assert Baseline.load(tmp_path, [], audit_key=KEY).version == 1


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [((2, 4), (2, 0)), ((4, 2), (0, 0)), ((2, 4), (0, 0))],
    ids=["rows", "columns", "same"],
)
def test_trackers_of_other_elements_are_rebuilt(
    tmp_path: Path, shape: tuple[int, int], offsets: tuple[int, int]
) -> None:
    """A shard of the same name, dtype and size in another place: another rank's folder, another sharding."""
    canonical = np.arange(16, dtype=np.uint16)

    def of(shape: tuple[int, int], offsets: tuple[int, int]) -> AffineTask:
        return AffineTask("w", "w", "bfloat16", 8, IndexMap.from_block(shape, offsets, (4, 4)), (0,))

    def read(task: AffineTask) -> Bits:
        return canonical[task.map.to_far(np.arange(8, dtype=np.int64))]

    Baseline.create(tmp_path, [of((2, 4), (0, 0))], read, audit_key=KEY)
    task = of(shape, offsets)
    loaded = Baseline.load(tmp_path, [task], audit_key=KEY)
    assert loaded.version == (0 if (shape, offsets) == ((2, 4), (0, 0)) else UNPROVEN)
    loaded.bring_to(0, lambda names: dict.fromkeys(names, canonical))
    assert np.array_equal(loaded.bits(task), read(task))
