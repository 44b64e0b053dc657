"""What each level of the receivers' own check finds (R13), on a run in one process."""

from pathlib import Path

import pytest
import torch

from dcr.receiver.apply import Applier
from dcr.testing.world import RECEIVERS, World


def _world(folder: Path, monkeypatch: pytest.MonkeyPatch, check: str) -> World:
    monkeypatch.setattr("os.fsync", lambda _: None)
    world = World(folder, check=check)
    world.create()
    world.drive(1)
    return world


def _decay(world: World, name: str) -> None:
    """Flip a bit of an element that step 2 does not change."""
    old, new = world.truth(1)["table"], world.truth(2)["table"]
    unchanged = int((old == new).nonzero()[0][0])
    world.runtimes[name].data("table").view(-1).view(torch.uint8)[unchanged] ^= 1


def test_a_full_check_finds_decay_outside_the_delta_and_the_receiver_is_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(tmp_path, monkeypatch, "full")
    _decay(world, "runtime-1")
    report = world.drive(2)
    assert report is not None
    assert report.num_attempts == 2
    assert [world.differing_bits(name, 2) for name in RECEIVERS] == [0, 0]


def test_the_check_of_written_bits_does_not_look_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world(tmp_path, monkeypatch, "written")
    _decay(world, "runtime-1")
    world.drive(2)
    assert [world.differing_bits(name, 2) for name in RECEIVERS] == [0, 1]


def test_without_checks_nothing_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = _world(tmp_path, monkeypatch, "off")
    monkeypatch.setattr(Applier, "check", lambda _: pytest.fail("read back"))
    world.drive(2)
    assert [world.differing_bits(name, 2) for name in RECEIVERS] == [0, 0]
