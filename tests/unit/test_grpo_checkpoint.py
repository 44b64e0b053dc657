"""Training checkpoints: complete or absent, bound to run, version and step, two kept."""

from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from dcr.errors import IntegrityError
from dcr_recipes.grpo.checkpoint import CheckpointStore
from dcr_recipes.grpo.metrics import StepMetrics

RUN = "0" * 32


class At(NamedTuple):
    version: int
    step: int


def _store(folder: Path, rank: int, run: str = RUN, world_size: int = 2) -> CheckpointStore:
    return CheckpointStore(folder, run, rank=rank, world_size=world_size)


def _history(step: int) -> tuple[StepMetrics, ...]:
    return tuple(
        StepMetrics(s, s - 1, 0.1 * s, 0.2, -1e-9, 0.0, 0.0, 1.0, 64, "ab") for s in range(1, step + 1)
    )


def _state(step: int, rank: int) -> dict[str, torch.Tensor]:
    return {
        "model/w": torch.full((3 - rank, 2), 1.0 + step / 7 + rank),
        "model/none": torch.zeros(0, 2),
        "optimizer/w/step": torch.tensor(float(step)),
        "rng": torch.arange(5, dtype=torch.uint8),
    }


def _save(folder: Path, version: int, step: int, ranks: tuple[int, ...] = (0, 1)) -> None:
    for rank in ranks:
        _store(folder, rank).save(version, _state(step, rank), _history(step))


def _folders(folder: Path) -> list[At]:
    parts = [path.name.split("-") for path in sorted(folder.iterdir())]
    return [At(int(part[1]), int(part[3])) for part in parts]


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    _save(tmp_path, 3, 3)
    loaded = _store(tmp_path, 1).load_matching(At(3, 3))
    assert loaded is not None
    assert loaded.meta.history == _history(3)
    assert loaded.meta.next_step == 4
    expected = _state(3, 1)
    assert loaded.state.keys() == expected.keys()
    assert all(torch.equal(loaded.state[key], expected[key]) for key in expected)


def test_a_checkpoint_of_which_a_rank_is_missing_does_not_count(tmp_path: Path) -> None:
    _save(tmp_path, 1, 1)
    _save(tmp_path, 2, 2, ranks=(0,))
    assert _store(tmp_path, 0).load_matching(At(2, 2)) is None
    newest = _store(tmp_path, 0).load_newest_not_after(2)
    assert newest is not None
    assert newest.meta.step == 1


def test_version_and_step_must_both_match(tmp_path: Path) -> None:
    _save(tmp_path, 5, 4)
    store = _store(tmp_path, 0)
    assert store.load_matching(At(5, 5)) is None
    assert store.load_matching(At(4, 4)) is None
    assert store.load_newest_not_after(4) is None
    assert store.load_newest_not_after(5) is not None
    assert _store(tmp_path / "nowhere", 0).load_newest_not_after(9) is None


def test_two_versions_are_kept(tmp_path: Path) -> None:
    for step in range(4):
        _save(tmp_path, step, step)
    assert _folders(tmp_path) == [At(2, 2), At(3, 3)]


def test_a_candidate_that_never_committed_does_not_push_out_the_committed_one(tmp_path: Path) -> None:
    """Steps 5 and 6 are committed, 7 is offered in vain; the trainer goes back to step 4 and publishes it."""
    _save(tmp_path, 6, 6)
    _save(tmp_path, 7, 7)
    _save(tmp_path, 7, 4)
    assert _folders(tmp_path) == [At(6, 6), At(7, 4)]
    _save(tmp_path, 8, 5)
    assert _folders(tmp_path) == [At(7, 4), At(8, 5)]


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_the_last_complete_one_stays_until_another_is_committed(
    tmp_path: Path, lost: int, ranks: tuple[int, ...]
) -> None:
    """A rank's file of the committed version is lost; the ranks begin with the one before, and die again."""
    for version in (1, 2, 3):
        _save(tmp_path, version, version)
    _store(tmp_path, lost)._path(3, 3, lost).unlink()
    _save(tmp_path, 4, 2, ranks)
    for rank in (0, 1):
        loaded = _store(tmp_path, rank).load_newest_not_after(3)
        assert loaded is not None
        assert (loaded.meta.version, loaded.meta.step) == (2, 2)
    _save(tmp_path, 4, 2)
    _save(tmp_path, 5, 3)
    assert At(2, 2) not in _folders(tmp_path)


@pytest.mark.parametrize(("record", "is_lost"), [(0, True), (1, True), (2, False), (3, False), (7, False)])
def test_a_record_that_was_lost_is_noticed(tmp_path: Path, record: int, is_lost: bool) -> None:
    """A checkpoint of version 3 is written when 2 is committed: an older record is not that of this run."""
    for version in (1, 2, 3):
        _save(tmp_path, version, version)
    _store(tmp_path / "none", 0).require_not_ahead(At(0, 0))
    if not is_lost:
        _store(tmp_path, 0).require_not_ahead(At(record, record))
        return
    with pytest.raises(IntegrityError, match=rf"record is at version {record}, but .* of version 3: put"):
        _store(tmp_path, 0).require_not_ahead(At(record, record))


def test_a_leftover_of_a_crash_is_cleared(tmp_path: Path) -> None:
    _save(tmp_path, 1, 1)
    (tmp_path / "version-00000001-step-00000001" / "rank-0.part").write_bytes(b"half")
    _save(tmp_path, 2, 2)
    _save(tmp_path, 3, 3)
    assert _folders(tmp_path) == [At(2, 2), At(3, 3)]


def test_another_run_or_sharding_is_refused(tmp_path: Path) -> None:
    _save(tmp_path, 1, 1)
    with pytest.raises(IntegrityError, match="another run"):
        _store(tmp_path, 0, run="1" * 32).load_matching(At(1, 1))
    with pytest.raises(IntegrityError, match="another run"):
        _store(tmp_path, 0, world_size=1).load_matching(At(1, 1))


def test_no_flipped_bit_goes_unnoticed(tmp_path: Path) -> None:
    _save(tmp_path, 1, 1)
    path = tmp_path / "version-00000001-step-00000001" / "rank-0.safetensors"
    whole = path.read_bytes()
    tensors = 8 + int.from_bytes(whole[:8], "little")
    assert len(whole) - tensors == sum(tensor.nbytes for tensor in _state(1, 0).values())
    for at in range(tensors, len(whole)):  # low bits of masters, optimizer and generator: nothing serves them
        broken = bytearray(whole)
        broken[at] ^= 1
        path.write_bytes(broken)
        with pytest.raises(IntegrityError, match="not those it was written with"):
            _store(tmp_path, 0).load_matching(At(1, 1))
    path.write_bytes(whole[:40])
    with pytest.raises(IntegrityError, match="not a training checkpoint"):
        _store(tmp_path, 0).load_matching(At(1, 1))
