"""The committed source baseline B^v: one tracker per owned task, in host memory (paper section 5, P9).

Trackers are memory-mapped, about 1.00x of the owned shards, and persistent: after a crash each is
proven by digest to hold v or v+1; what is torn is rebuilt from anchor and chain. Or they are in plain
memory, and all of them are rebuilt. Not thread-safe:
the owner runs one operation at a time.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from dcr.errors import IntegrityError
from dcr.model import Bits
from dcr.source.change import Change, TaskChange, require_shape
from dcr.source.detect import Candidate, host_bits
from dcr.source.digests import DigestTable, TaskDigests, chunk_ranges, digest_task
from dcr.source.task import AffineTask
from dcr.source.tracker_file import TrackerFile
from dcr.source.tracker_index import (
    Held,
    TrackerIndex,
    layout_digest,
    read_index,
    remove_index,
    write_index,
)
from dcr.source.tracker_memory import TrackerMemory

UNPROVEN = -1
"""Version of a baseline whose trackers are not all proven to hold the same one."""

ReadTask: TypeAlias = Callable[[AffineTask], Candidate]
Rebuild: TypeAlias = Callable[[Sequence[str]], Mapping[str, Bits]]
"""Canonical names -> flat canonical bits [num_elements] of each at the record's version."""


class Baseline:
    """Trackers of one rank's owned tasks. Make it with ``create`` (v0) or ``load`` (after a restart)."""

    def __init__(
        self, directory: Path, tasks: Sequence[AffineTask], audit_key: str, *, persistent: bool = True
    ) -> None:
        self.tasks = tuple(tasks)
        self._audit_key = audit_key
        self._layout = layout_digest(tasks, audit_key)
        self._persistent = persistent
        self._file = TrackerFile(directory / "trackers.bin", tasks) if persistent else TrackerMemory(tasks)
        self._index_path = directory / "trackers.json"
        self._index: TrackerIndex | None = None
        self._digests: DigestTable = {}  # of what the trackers hold; a tracker being written has none
        self._version = UNPROVEN

    @classmethod
    def create(
        cls,
        directory: Path,
        tasks: Sequence[AffineTask],
        read: ReadTask,
        *,
        audit_key: str,
        persistent: bool = True,
    ) -> "Baseline":
        """Make v0 from the weights that ``read`` returns, durably; replaces what ``directory`` holds.

        Unless ``persistent``, trackers are in memory and nothing is written to ``directory``.

        Raises:
            ConfigError: the bits are not of a task's dtype and size.
            StoreError: the disk is full.
        """
        baseline = cls(directory, tasks, audit_key, persistent=persistent)
        remove_index(baseline._index_path)
        baseline._file.allocate()
        baseline._file.open()
        for task in baseline.tasks:
            bits = read(task)
            require_shape(task, bits, "the weights at version 0")
            tracker = baseline._file.view(task)
            tracker[:] = host_bits(bits)
            baseline._digests[task.key] = digest_task(audit_key, task, tracker)
        baseline._hold(0)
        return baseline

    @classmethod
    def load(
        cls, directory: Path, tasks: Sequence[AffineTask], *, audit_key: str, persistent: bool = True
    ) -> "Baseline":
        """Open existing trackers and prove each by digest; see ``version`` and ``stale``.

        A missing or damaged file or index, or one of other tasks, is no error: nothing is proven then. Unless
        ``persistent`` nothing ever is: all trackers are rebuilt.

        Raises:
            StoreError: the files cannot be read or allocated.
        """
        baseline = cls(directory, tasks, audit_key, persistent=persistent)
        index = read_index(baseline._index_path, baseline._layout)
        if not baseline._file.is_intact():
            baseline._file.allocate()
            index = None
        baseline._file.open()
        if index is not None:
            baseline._prove(index)
        return baseline

    @property
    def version(self) -> int:
        """The version that every tracker is proven to hold, or UNPROVEN."""
        return self._version

    def follows(self, version: int) -> bool:
        """Whether ``fold_in(version)`` is the next step, or the one that an error interrupted."""
        return self._index is not None and self._index.held.version == version - 1

    def bits(self, task: AffineTask) -> Bits:
        """Read-only stored bits [N] of the tracker."""
        view = self._file.view(task)
        view.flags.writeable = False
        return view

    def digests(self, task: AffineTask) -> TaskDigests:
        """Audit digests of what the tracker holds.

        Raises:
            IntegrityError: it is torn.
        """
        try:
            return self._digests[task.key]
        except KeyError:
            raise IntegrityError(
                f"the tracker of task {task.key!r} is torn; it must be rebuilt first"
            ) from None

    def stale(self, version: int) -> tuple[str, ...]:
        """Keys of the tasks whose trackers are not proven to hold ``version``."""
        expected = self._index.expected(version) if self._index else {}
        return tuple(
            task.key
            for task in self.tasks
            if task.key not in expected or self._digests.get(task.key) != expected[task.key]
        )

    def fold_in(self, version: int, digests: DigestTable, changes: Iterable[Change]) -> None:
        """Write absolute candidate bits into every tracker, durably, and advance to ``version``.

        ``digests`` are the candidate's, by task key; ``changes`` gives one entry per task, found
        lazily against the tracker. Idempotent: after an error the same call finishes the work.

        Raises:
            IntegrityError: the trackers do not hold ``version - 1``, or the bits are not the announced ones.
            StoreError: the disk is full; nothing is lost.
        """
        if version == self._version:
            return
        if self._index is None or not self.follows(version):
            raise IntegrityError(f"cannot fold version {version} into trackers of version {self._version}")
        self._announce(self._index, Held(version, dict(digests)))
        self._version = UNPROVEN
        for change in changes:
            self._fold_task(change, digests[change.task.key])
        if behind := self.stale(version):
            raise IntegrityError(f"fold-in of version {version} left out tasks {list(behind)}")
        self._hold(version)

    def bring_to(self, version: int, rebuild: Rebuild) -> None:
        """Make every tracker hold ``version``, a committed one, rewriting those that do not.

        Raises:
            IntegrityError: the rebuilt bits are not those that this owner knows of ``version``.
        """
        if version == self._version and self._index is not None and self._index.pending is None:
            return
        behind = set(self.stale(version))
        tasks = [task for task in self.tasks if task.key in behind]
        self._version = UNPROVEN
        if tasks:
            canonical = rebuild(sorted({task.name for task in tasks}))
            for task in tasks:
                self._rebuild_task(task, canonical, version)
        self._hold(version)

    def _prove(self, index: TrackerIndex) -> None:
        self._index = index
        for task in self.tasks:
            self._digests[task.key] = digest_task(self._audit_key, task, self._file.view(task))
        known = (index.held, index.pending)
        proven = [held.version for held in known if held is not None and not self.stale(held.version)]
        if proven and proven[0] != index.held.version:
            self._hold(proven[0])
        self._version = proven[0] if proven else UNPROVEN

    def _announce(self, index: TrackerIndex, pending: Held) -> None:
        if index.pending != pending:
            announced = TrackerIndex(self._layout, index.held, pending)
            self._write(announced)
            self._index = announced

    def _hold(self, version: int) -> None:
        self._file.sync()
        index = TrackerIndex(self._layout, Held(version, dict(self._digests)))
        self._write(index)
        self._index, self._version = index, version

    def _write(self, index: TrackerIndex) -> None:
        if self._persistent:
            write_index(self._index_path, index)

    def _fold_task(self, change: Change, wanted: TaskDigests) -> None:
        """Write one task. Whoever finds other bits than announced must not leave them in a tracker."""
        task, before = change.task, self._digests.get(change.task.key)
        if before is not None and change.digests(self._audit_key, before) != wanted:
            raise IntegrityError(
                f"the candidate of task {task.key!r} is not what was committed: weights were written "
                "between OwnerAgent.present and the end of the transition (P5); restart the trainer from its "
                "checkpoint"
            )
        tracker = self._file.view(task)
        self._digests.pop(task.key, None)
        change.write(tracker)
        # of a task that changed whole the weights themselves were read once more just now
        proven = before is not None and isinstance(change, TaskChange)
        after = wanted if proven else digest_task(self._audit_key, task, tracker)
        if after != wanted:
            raise IntegrityError(f"the tracker of task {task.key!r} is torn and its candidate has changed")
        self._digests[task.key] = after

    def _rebuild_task(self, task: AffineTask, canonical: Mapping[str, Bits], version: int) -> None:
        bits, tracker = canonical[task.name], self._file.view(task)
        if bits.dtype != tracker.dtype or bits.shape != (task.map.dst_size,):
            raise IntegrityError(
                f"the archive's {task.name!r} is {bits.dtype} {list(bits.shape)}, task {task.key!r} needs "
                f"{tracker.dtype} [{task.map.dst_size}]"
            )
        self._digests.pop(task.key, None)
        tracker[:] = 0
        for local in chunk_ranges(task.num_elements):
            far, order = task.map.to_far_sorted(local)
            tracker[local if order is None else local[order]] = bits[far]
        self._digests[task.key] = digest_task(self._audit_key, task, tracker)
        expected = self._index.expected(version) if self._index else {}
        if task.key in expected and expected[task.key] != self._digests[task.key]:
            raise IntegrityError(
                f"version {version} of task {task.key!r} rebuilt from the archive has other bits"
            )
