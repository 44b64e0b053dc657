"""A run folder on disk as a finished run leaves it, without having run anything."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.indexmap import IndexMap
from dcr.model import Bits, ControlState, Encoding, RunId, to_json
from dcr.source.baseline import Baseline
from dcr.source.task import AffineTask
from dcr.testing.history import History, Tensors, random_tensors, small_catalogue
from dcr.transport.directory import DirectoryStore
from dcr_recipes.compose import compose, save
from dcr_recipes.layout import RunFolder

WORDS = ("model=tiny", "recipe=grpo_tiny", "trainer.ranks=2", "runtime.instances=2")


@dataclass(frozen=True, slots=True)
class StoredRun:
    folder: RunFolder
    history: History

    @property
    def root(self) -> str:
        return str(self.folder.root)

    def payloads(self, attempt: str) -> list[Path]:
        return sorted(self.folder.store.glob(f"*/payload/{attempt}/*/*"))

    def commit(self) -> None:
        """Make the history's last record the committed one."""
        plane, record = SqliteControlPlane(self.folder.control), self.history.records[-1]
        state = ControlState(
            record.run, record.version, "w", 1, record.attempt.number, record,
            members=("runtime-0", "runtime-1"),
        )  # fmt: skip
        if record.version == 0:
            plane.create(state)
        else:
            plane.compare_and_set(plane.read(record.run), state)


def stored_run(root: Path, num_versions: int = 3, run: RunId = "ab" * 16) -> StoredRun:
    """Version 0 and xor versions after it, of two owners; trackers of two ranks at the last one."""
    folder = RunFolder(root)
    folder.store.mkdir(parents=True)
    folder.endpoints.mkdir()
    save(compose(WORDS), folder.config)
    folder.run_id.write_text(run)
    made = StoredRun(folder, History(DirectoryStore(folder.store), small_catalogue(run), audits=True))
    rng = np.random.default_rng(3)
    for _ in range(num_versions):
        made.history.commit(random_tensors(made.history.catalogue, rng), encoding=Encoding.XOR)
        made.commit()
    made.history.archive.put_object("catalogue", to_json(made.history.catalogue))
    for rank in (0, 1):
        _track(made, rank)
    return made


def flip(path: Path, at: int = -1) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def _track(made: StoredRun, rank: int) -> None:
    """Rows in rank order, as FSDP2 shards them; at the last version."""
    tensors, tasks = made.history.tensors[-1], []
    for spec in made.history.catalogue.tensors:
        half = -(-spec.num_elements // 2)
        start = 0 if rank == 0 else half
        size = half if rank == 0 else spec.num_elements - half
        if size:
            flat = IndexMap.from_block((size,), (start,), (spec.num_elements,))
            tasks.append(AffineTask(spec.name, spec.name, spec.dtype, size, flat, (rank,), spec.aliases))
    folder = made.folder.trackers / f"rank-{rank}"

    def read(task: AffineTask) -> Bits:
        return _part(tensors, task, rank)

    baseline = Baseline.create(folder, tasks, read, audit_key=made.history.catalogue.audit_key)
    baseline.bring_to(len(made.history.records) - 1, lambda names: {name: tensors[name] for name in names})


def _part(tensors: Tensors, task: AffineTask, rank: int) -> Bits:
    bits = tensors[task.name]
    return bits[: task.num_elements] if rank == 0 else bits[bits.size - task.num_elements :]
