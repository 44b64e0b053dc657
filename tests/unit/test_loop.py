"""The trainer's loop on stand-ins: whatever crashes, rows, versions and weights end as in a calm run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dcr.errors import IntegrityError
from dcr.model import AuditDigest, AuditTable
from dcr_recipes.errors import VerificationError
from dcr_recipes.grpo.metrics import StepMetrics
from dcr_recipes.layout import RunFolder
from dcr_recipes.loop import Loop
from dcr_recipes.recorder import Recorder, dense_path
from dcr_recipes.refitter import Audit, Figures, Position
from dcr_recipes.verify import Difference, Verifier


class CrashError(Exception):
    pass


Hook = Callable[[str, int], None]


@dataclass
class World:
    """What survives a crash: the record, the checkpoints, and what was published under each version."""

    record: Position | None = None
    published: dict[int, int] = field(default_factory=dict)
    checkpoints: dict[tuple[int, int], list[StepMetrics]] = field(default_factory=dict)
    audits: bool = True


class Training:
    """The weights after step s are the number s."""

    def __init__(self, world: World, hook: Hook) -> None:
        self.world, self.hook = world, hook
        self.history: list[StepMetrics] = []

    def rollout_and_train(self, step: int, version: int) -> StepMetrics:
        assert self.world.record == Position(version, self.world.published[version])
        assert self.world.published[version] == step - 1 == len(self.history)
        made = StepMetrics(step, version, step / 10, 0.1, 0.0, 0.0, 0.0, 1.0, 4, f"tokens-{step}")
        self.history.append(made)
        self.hook("train", step)
        return made

    def save(self, version: int) -> None:
        self.world.checkpoints[version, len(self.history)] = list(self.history)
        self.hook("save", len(self.history))

    def require_not_ahead(self, position: Position) -> None:
        if any(version > position.version + 1 for version, _ in self.world.checkpoints):
            raise IntegrityError("the record was lost")

    def restore(self, position: Position) -> bool:
        key = (position.version, position.step)
        old = [pair for pair in self.world.checkpoints if pair[0] <= position.version]
        if not old:
            raise IntegrityError("no training checkpoint")
        self.history = list(self.world.checkpoints[key if key in old else max(old)])
        return key in old

    def prove(self, table: AuditTable, audit_key: str) -> None:
        assert audit_key == "key"
        if table != {"weight": AuditDigest(len(self.history), 1)}:
            raise IntegrityError("the weights are not as committed")

    def gather(self) -> Mapping[str, torch.Tensor]:
        return {"weight": torch.tensor([float(len(self.history))])}


class Refitter:
    def __init__(self, world: World, training: Training, hook: Hook) -> None:
        self.world, self.training, self.hook = world, training, hook
        self.reads_export = False

    def open(self) -> Position:
        if self.world.record is None:
            assert not self.training.history
            self._commit(Position(0, 0))
        assert self.world.record is not None
        return self.world.record

    def serve(self, version: int) -> None:
        assert self.world.published[version] == len(self.training.history)

    def sync(self, step: int, parent: int) -> Figures:
        assert self.world.record is not None
        assert self.world.record.version == parent
        assert (parent + 1, step) in self.world.checkpoints, "no checkpoint before the commit"
        self.hook("before commit", step)
        self._commit(Position(parent + 1, step))
        self.hook("after commit", step)
        return Figures(parent + 1, 2, 100, 10, 1000, 0.5, 1)

    def audit(self) -> Audit | None:
        assert self.world.record is not None
        if not self.world.audits:
            return None
        return Audit({"weight": AuditDigest(self.world.published[self.world.record.version], 1)}, "key")

    def last(self) -> Figures:
        assert self.world.record is not None
        return Figures(self.world.record.version, 2, 100, 10, 1000, None, None)

    def _commit(self, position: Position) -> None:
        self.world.record = position
        self.world.published[position.version] = position.step


def _run(world: World, folder: RunFolder, hook: Hook = lambda *_: None, *, num_steps: int = 4) -> None:
    folder.dense.mkdir(parents=True, exist_ok=True)
    training = Training(world, hook)
    recorder = Recorder(folder, None)
    Loop(
        training, Refitter(world, training, hook), num_steps=num_steps, gathers=True, recorder=recorder
    ).run()


def _rows(folder: RunFolder) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    return rows


def _exported_weight(folder: RunFolder, version: int) -> float:
    return float(load_file(dense_path(folder, version))["weight"])


def test_a_calm_run(tmp_path: Path) -> None:
    world, folder = World(), RunFolder(tmp_path)
    _run(world, folder)
    assert world.record == Position(4, 4)
    assert [(row["step"], row["version"], row["rollout/version"]) for row in _rows(folder)] == [
        (1, 1, 0), (2, 2, 1), (3, 3, 2), (4, 4, 3),
    ]  # fmt: skip
    summary = json.loads(folder.summary.read_text())
    assert (summary["num_steps"], summary["final_version"], summary["payload_bytes"]) == (4, 4, 40)
    assert summary["rewards"] == [0.1, 0.2, 0.3, 0.4]
    assert sorted(folder.dense.iterdir()) == [dense_path(folder, 3), dense_path(folder, 4)]


def _seconds(tmp_path: Path, *, reads_export: bool) -> list[object]:
    folder = RunFolder(tmp_path)
    folder.dense.mkdir(parents=True)
    world = World()
    training = Training(world, lambda *_: None)
    refitter = Refitter(world, training, lambda *_: None)
    refitter.reads_export = reads_export
    Loop(training, refitter, num_steps=1, gathers=True, recorder=Recorder(folder, None)).run()
    return [row["refit/seconds"] for row in _rows(folder)]


def test_making_the_candidate_is_part_of_a_refit_that_moves_it(tmp_path: Path) -> None:
    assert _seconds(tmp_path / "delta", reads_export=False) == [0.5]
    (seconds,) = _seconds(tmp_path / "dense", reads_export=True)
    assert isinstance(seconds, float)
    assert seconds > 0.5


@pytest.mark.parametrize("where", ["train", "save", "before commit", "after commit"])
@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_crash_anywhere_changes_nothing_in_the_end(tmp_path: Path, where: str, step: int) -> None:
    def crash(point: str, at: int) -> None:
        if (point, at) == (where, step):
            raise CrashError

    world, folder = World(), RunFolder(tmp_path / "crashed")
    with pytest.raises(CrashError):
        _run(world, folder, crash)
    _run(world, folder)
    calm = RunFolder(tmp_path / "calm")
    _run(World(), calm)
    unknown = ("refit/seconds", "refit/attempts")
    for ours, theirs in zip(_rows(folder), _rows(calm), strict=True):
        assert {k: v for k, v in ours.items() if k not in unknown} == {
            k: v for k, v in theirs.items() if k not in unknown
        }
        lost = where == "after commit" and ours["step"] == step
        assert (ours["refit/seconds"] is None) == lost
    assert folder.summary.read_text() == calm.summary.read_text()


def test_a_complete_run_that_is_resumed_changes_nothing_and_can_be_prolonged(tmp_path: Path) -> None:
    world, folder = World(), RunFolder(tmp_path)
    _run(world, folder)
    before = folder.metrics.read_text(), folder.summary.read_text()
    _run(world, folder)
    assert (folder.metrics.read_text(), folder.summary.read_text()) == before
    _run(world, folder, num_steps=5)
    assert len(_rows(folder)) == 5


def test_an_older_checkpoint_is_published_as_the_next_version(tmp_path: Path) -> None:
    world, folder = World(), RunFolder(tmp_path)
    _run(world, folder)
    for lost in [key for key in world.checkpoints if key[0] > 2]:
        del world.checkpoints[lost]
    _run(world, folder)
    assert world.published[5] == 2
    assert world.record == Position(7, 4)
    assert [(row["step"], row["version"]) for row in _rows(folder)] == [(1, 1), (2, 2), (3, 6), (4, 7)]
    summary = json.loads(folder.summary.read_text())
    assert (summary["rewards"], summary["final_version"]) == ([0.1, 0.2, 0.3, 0.4], 7)


def test_older_weights_are_never_exported_under_the_committed_versions_name(tmp_path: Path) -> None:
    world, folder = World(), RunFolder(tmp_path)
    _run(world, folder)
    for lost in [key for key in world.checkpoints if key[0] > 2]:
        del world.checkpoints[lost]
    exported: list[tuple[float, float]] = []

    def look(point: str, step: int) -> None:
        if (point, step) == ("before commit", 2):
            exported.append((_exported_weight(folder, 4), _exported_weight(folder, 5)))

    _run(world, folder, look)
    assert exported == [(4.0, 2.0)]


def test_a_checkpoint_that_does_not_serve_the_committed_bits_stops_the_run(tmp_path: Path) -> None:
    world, folder = World(), RunFolder(tmp_path)
    _run(world, folder)
    world.checkpoints[4, 4] = world.checkpoints[4, 4][:3]
    with pytest.raises(IntegrityError, match="not as committed"):
        _run(world, folder)
    assert world.record == Position(4, 4)


def test_dense_refits_have_nothing_to_prove_against(tmp_path: Path) -> None:
    world, folder = World(audits=False), RunFolder(tmp_path)
    _run(world, folder)
    _run(world, folder, num_steps=5)
    assert world.record == Position(5, 5)


def test_without_any_checkpoint_the_run_stops(tmp_path: Path) -> None:
    world, folder = World(), RunFolder(tmp_path)
    _run(world, folder)
    world.checkpoints.clear()
    with pytest.raises(IntegrityError, match="no training checkpoint"):
        _run(world, folder)


def test_lost_rows_are_an_error_that_says_so(tmp_path: Path) -> None:
    world, folder = World(), RunFolder(tmp_path)
    _run(world, folder)
    folder.metrics.write_text("")
    with pytest.raises(IntegrityError, match="has 0 rows, the checkpoint 4 steps"):
        _run(world, folder)


def test_differing_bits_stop_the_run_after_the_row_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Path, int]] = []

    def verify(_: Verifier, dense: Path, version: int) -> list[Difference]:
        asked.append((dense, version))
        assert dense.exists()
        return [Difference("runtime-1", "weight", 3)] if version == 2 else []

    monkeypatch.setattr(Verifier, "verify", verify)
    world, folder = World(), RunFolder(tmp_path)
    folder.dense.mkdir()
    training = Training(world, lambda *_: None)
    refitter = Refitter(world, training, training.hook)
    oracle: object = None
    recorder = Recorder(folder, Verifier(oracle, {}, tmp_path))  # type: ignore[arg-type]  # never asked
    with pytest.raises(VerificationError, match="3 bits of weight"):
        Loop(training, refitter, num_steps=4, gathers=True, recorder=recorder).run()
    assert [row["verify/differing_bits"] for row in _rows(folder)] == [0, 3]
    assert asked == [(dense_path(folder, 1), 1), (dense_path(folder, 2), 2)]
    assert not folder.summary.exists()


class Diverging(Training):
    """Its loss is not finite from step 2 on."""

    def rollout_and_train(self, step: int, version: int) -> StepMetrics:  # type: ignore[explicit-override]
        made = super().rollout_and_train(step, version)
        self.history[-1] = replace(made, loss=float("nan") if step > 1 else 0.5)
        return self.history[-1]


def test_a_diverged_training_goes_on_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, folder = World(), RunFolder(tmp_path)
    folder.dense.mkdir(parents=True)
    for num_steps in (2, 4):
        training = Diverging(world, lambda *_: None)
        refitter = Refitter(world, training, lambda *_: None)
        Loop(training, refitter, num_steps=num_steps, gathers=True, recorder=Recorder(folder, None)).run()
    assert [row["train/loss"] for row in _rows(folder)] == [0.5, None, None, None]
    told = [record.message for record in caplog.records if "diverged" in record.message]
    assert len(told) == 1
    assert told[0].startswith("training diverged: loss is not finite at step 2;")
