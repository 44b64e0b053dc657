"""Training checkpoints, one safetensors file per rank, durable before the version they belong to commits.

A checkpoint is named by the version that its weights are about to become and the step that made them.
The commit record names both: if it names (v, s), the files of (v, s) are complete, because every rank
wrote its own before it offered its candidate (DESIGN P5, P13).
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dcr.errors import IntegrityError, PayloadError
from dcr.model import RunId, from_json, to_json
from dcr.transport.durable import sync_path
from dcr_recipes.grpo.metrics import StepMetrics
from dcr_recipes.grpo.shard_state import state_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_FOLDER = re.compile(r"version-(\d{8})-step-(\d{8})")
_META = "dcr"
_KEPT = 2
_PART = ".part"
_REMEDY = "put the file back, or remove its folder to go on from the checkpoint before"


class Committed(Protocol):
    """What is official: a commit record, or whatever else names its version and training step."""

    @property
    def version(self) -> int:
        """Version that the runtimes serve."""
        ...

    @property
    def step(self) -> int:
        """Training step whose weights it has."""
        ...


@dataclass(frozen=True, slots=True)
class CheckpointMeta:
    """What a rank's file is: its run, place and time, the bits it holds, and the sampler's position.

    ``digest`` is of every tensor in the file; ``next_step`` is all that the sampler
    needs, because prompts and seeds follow from it.
    """

    run: RunId
    rank: int
    world_size: int
    version: int
    step: int
    digest: str
    next_step: int
    history: tuple[StepMetrics, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A rank's file, read and proven: ``state`` is what ``shard_state.install`` takes."""

    meta: CheckpointMeta
    state: "Mapping[str, torch.Tensor]"


class CheckpointStore:
    """The checkpoints of one run in ``folder``, as one rank sees them.

    Two versions are kept, and the newest complete one if it is neither.

    Ranks share the folder; each writes and removes only its own files.
    """

    def __init__(self, folder: Path, run: RunId, *, rank: int, world_size: int) -> None:
        self._folder = folder
        self._run = run
        self._rank = rank
        self._world_size = world_size

    def save(
        self, version: int, state: "Mapping[str, torch.Tensor]", history: tuple[StepMetrics, ...]
    ) -> Path:
        """Write this rank's ``state`` durably for ``version``; on return it survives any crash.

        Writing the same version again replaces it (an aborted transition made it once before).

        Raises:
            OSError: the disk failed; earlier checkpoints are untouched.
        """
        step = history[-1].step if history else 0
        meta = CheckpointMeta(
            run=self._run,
            rank=self._rank,
            world_size=self._world_size,
            version=version,
            step=step,
            digest=state_digest(state),
            next_step=step + 1,
            history=history,
        )
        path = self._path(version, step, self._rank)
        _write_durably(path, state, meta)
        self._prune(version, step)
        return path

    def load_matching(self, committed: Committed) -> Checkpoint | None:
        """The checkpoint whose weights ``committed`` names, or None if some rank has no such file.

        Raises:
            IntegrityError: there is one, but it is another run's or does not hold what it claims.
        """
        if not self._is_complete(committed.version, committed.step):
            return None
        return self._load(committed.version, committed.step)

    def load_newest_not_after(self, version: int) -> Checkpoint | None:
        """The newest complete checkpoint of ``version`` or earlier, or None.

        What it holds is not the served version unless the record names it: its weights have to be
        published as the next version before they make rollouts (P13).
        """
        complete = [pair for pair in self._pairs() if pair[0] <= version and self._is_complete(*pair)]
        return self._load(*complete[-1]) if complete else None

    def require_not_ahead(self, committed: Committed) -> None:
        """Check that ``committed`` is the newest that was: a checkpoint is at most one version ahead of it.

        Raises:
            IntegrityError: it was lost, or an older one is in its place; going on would overwrite the rest.
        """
        newest = max((version for version, _ in self._pairs()), default=0)
        if newest > committed.version + 1:
            raise IntegrityError(
                f"the commit record is at version {committed.version}, but {self._folder} has a checkpoint "
                f"of version {newest}: put the run's record (control.sqlite, etcd, bucket) back, or begin "
                "another run"
            )

    def _load(self, version: int, step: int) -> Checkpoint:
        from safetensors import SafetensorError, safe_open

        path = self._path(version, step, self._rank)
        try:
            with safe_open(path, framework="pt") as file:
                meta = from_json(CheckpointMeta, (file.metadata() or {}).get(_META, ""))
                state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 -- not a dict
        except (SafetensorError, PayloadError) as err:
            raise IntegrityError(f"{path}: not a training checkpoint: {err}; {_REMEDY}") from err
        expected = (self._run, self._rank, self._world_size, version, step)
        if (meta.run, meta.rank, meta.world_size, meta.version, meta.step) != expected:
            raise IntegrityError(
                f"{path}: belongs to another run, rank, version or step: {meta.run}; {_REMEDY}"
            )
        if state_digest(state) != meta.digest:
            raise IntegrityError(f"{path}: its bits are not those it was written with; {_REMEDY}")
        return Checkpoint(meta, state)

    def _path(self, version: int, step: int, rank: int) -> Path:
        return self._folder / f"version-{version:08d}-step-{step:08d}" / f"rank-{rank}.safetensors"

    def _pairs(self) -> list[tuple[int, int]]:
        """(version, step) of every folder, oldest first."""
        if not self._folder.exists():
            return []
        found = (_FOLDER.fullmatch(entry.name) for entry in self._folder.iterdir())
        return sorted((int(match[1]), int(match[2])) for match in found if match)

    def _is_complete(self, version: int, step: int) -> bool:
        return all(self._path(version, step, rank).exists() for rank in range(self._world_size))

    def _prune(self, version: int, step: int) -> None:
        """Drop this rank's files of all but the last two versions, and of candidates that never committed.

        A folder of this version or a later one, other than the one just written, is what an earlier
        incarnation offered in vain: kept, it would push out the committed one. The newest complete one
        before this version stays: until this one is committed there may be no other to begin with.
        """
        pairs = self._pairs()
        vain = {pair for pair in pairs if pair[0] >= version and pair != (version, step)}
        whole = [pair for pair in pairs if pair[0] < version and self._is_complete(*pair)]
        old = set([pair for pair in pairs if pair not in vain][:-_KEPT]) - set(whole[-1:])
        for pair in vain | old:
            path = self._path(*pair, self._rank)
            path.unlink(missing_ok=True)
            path.with_suffix(_PART).unlink(missing_ok=True)
            _remove_if_empty(path.parent)


def _write_durably(path: Path, state: "Mapping[str, torch.Tensor]", meta: CheckpointMeta) -> None:
    """Temporary file, fsync, rename, fsync of the folders that name it."""
    from dcr_recipes.grpo.stream import write_safetensors

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(_PART)
    write_safetensors(temporary, state, {_META: to_json(meta).decode()})
    os.replace(temporary, path)
    for folder in (path.parent, path.parent.parent):
        sync_path(folder)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        # Another rank's files are still there, or it removed the folder first: either is its business.
        return
