"""The owner between versions: fold-in, restarts, quoted records (DESIGN P5, P6, P9, P13)."""

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.owner_fleets import ONE, TENSORS, THREE, TWO, XOR, equal

from dcr import observe
from dcr.errors import (
    AttemptFailed,
    ConfigError,
    Conflict,
    IntegrityError,
    StoreError,
)
from dcr.model import GENESIS
from dcr.source import UNPROVEN, Baseline, OwnerAgent, OwnerSetup, owned
from dcr.testing.toy_fleet import ToyFleet
from dcr.testing.toy_trainer import Tensors


def test_uncommitted_attempt_is_not_folded_in(fleet: ToyFleet) -> None:
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)
    with pytest.raises(Conflict, match="names attempt 1-1, not 1-2"):
        fleet.owners[0].fold_in(TWO, record)
    assert fleet.owners[0].collect(None).baseline_version == 0


def test_commit_of_an_earlier_attempt_that_landed_late_is_folded_in(fleet: ToyFleet, new: Tensors) -> None:
    first = fleet.construct(ONE, XOR)
    fleet.construct(TWO, XOR, overwrite_only=True)
    record = fleet.commit(ONE, first, step=1)
    for owner in fleet.owners:
        assert owner.fence(THREE, record).baseline_version == 1  # the quoted record names our attempt
        assert owner.wait_committed(1, timeout_s=0) == record
        assert owner.fold_in(ONE, record).baseline_version == 1
    assert equal(fleet.tracked(), new)


def test_detection_refuses_another_version(fleet: ToyFleet) -> None:
    record = fleet.records[0]
    fleet.owners[0].fence(ONE, record)
    with pytest.raises(IntegrityError, match="trackers are at version 0, the record at 4"):
        fleet.owners[0].construct(ONE, replace(record, version=4), False, XOR)


def test_a_later_fence_ends_a_rebuild_between_two_payloads(fleet: ToyFleet, new: Tensors) -> None:
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)
    shutil.rmtree(fleet.directory)
    owner = fleet.restart(0)
    fences: list[threading.Thread] = []
    read: list[str] = []

    def listen(event: observe.Event) -> None:
        if event.name == "replay.payload":
            read.append(event.name)
            if not fences:
                fences.append(threading.Thread(target=owner.fence, args=(TWO, record)))
                fences[0].start()
                running = owner._turn._running
                while running is not None and not running.cancelled:
                    time.sleep(0.001)

    with observe.listening(listen), pytest.raises(AttemptFailed, match="was stopped"):
        owner.fold_in(ONE, record)
    fences[0].join(10)
    assert not fences[0].is_alive()
    assert owner.collect(None).baseline_version == 1
    fleet.restart(1).fence(TWO, record)
    assert equal(fleet.tracked(), new)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("where", ["before", "after"])
def test_owner_killed_in_fold_in_catches_up_from_the_archive(
    fleet: ToyFleet, new: Tensors, where: str, nth: int
) -> None:
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)
    seen = 0

    def kill(event: observe.Event) -> None:
        nonlocal seen
        seen += event.name == f"owner.fold_in.task.{where}"
        if seen == nth:
            raise KeyboardInterrupt

    with observe.listening(kill), pytest.raises(KeyboardInterrupt):
        fleet.owners[0].fold_in(ONE, record)
    restarted = fleet.restart(0)
    assert restarted.collect(None).baseline_version in (UNPROVEN, 0, 1)
    assert restarted.fence(TWO, record).baseline_version == 1
    fleet.owners[1].fence(TWO, record)
    assert equal(fleet.tracked(), new)


def test_restart_before_fold_in_and_lost_trackers_are_rebuilt(
    fleet: ToyFleet, new: Tensors, tmp_path: Path
) -> None:
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)
    assert fleet.restart(0).fold_in(ONE, record).baseline_version == 1  # no candidate: from the chain
    for file in (tmp_path / "owner-1").iterdir():
        file.unlink()
    assert fleet.restart(1).collect(None).baseline_version == UNPROVEN
    assert fleet.owners[1].fence(TWO, record).baseline_version == 1
    assert equal(fleet.tracked(), new)


@pytest.mark.parametrize("committed", [False, True])
def test_crash_in_a_fold_in_without_changes_follows_the_record(
    fleet: ToyFleet, old: Tensors, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trackers prove both versions then; the quoted record says which it is."""
    fleet.write(old)
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Baseline, "_hold", die)
        with pytest.raises(KeyboardInterrupt):
            fleet.owners[0].fold_in(ONE, record)
    restarted = fleet.restart(0)
    quoted = record if committed else fleet.records[0]
    assert restarted.fence(TWO, quoted).baseline_version == quoted.version
    assert fleet.restart(0).collect(None).baseline_version == quoted.version


def test_rolled_back_trainer_keeps_the_committed_baseline(
    fleet: ToyFleet, old: Tensors, new: Tensors
) -> None:
    """P13: older weights are published as the next version, against the committed trackers."""
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)
    for owner in fleet.owners:
        owner.fold_in(ONE, record)
    fleet.refit(old, XOR)
    assert equal(fleet.tracked(), old)
    assert fleet.records[-1].version == 2


def test_stale_record_and_foreign_catalogue_are_refused(fleet: ToyFleet) -> None:
    v0 = fleet.records[0]
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)
    fleet.owners[0].fold_in(ONE, record)
    with pytest.raises(Conflict, match="trackers are at 1, past record 0"):
        fleet.owners[0].fence(TWO, v0)
    with pytest.raises(ConfigError, match="another model, dtype or name set needs a new run"):
        fleet.owners[0].fence(THREE, replace(record, catalogue="0" * 32))


def test_delayed_fold_in_of_an_older_version_does_nothing(fleet: ToyFleet, old: Tensors) -> None:
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)
    for owner in fleet.owners:
        owner.fold_in(ONE, record)
    fleet.refit(old, XOR)
    fleet.owners[0].present(3)
    report = fleet.owners[0].fold_in(ONE, record)
    assert (report.baseline_version, report.step) == (2, 3)


def test_setup_must_describe_the_same_shards(fleet: ToyFleet, tmp_path: Path) -> None:
    source = fleet.sources[0]
    setup: OwnerSetup = fleet.owners[0]._setup
    other = replace(fleet.catalogue, tensors=fleet.catalogue.tensors[1:])
    with pytest.raises(ConfigError, match="not those of the run's catalogue"):
        OwnerAgent(0, source, replace(setup, catalogue=other))
    tasks = owned(source.tasks(), 0)[1:]
    part = Baseline.create(tmp_path / "part", tasks, source.read, audit_key=fleet.catalogue.audit_key)
    with pytest.raises(ConfigError, match="is not made of owned"):
        OwnerAgent(0, source, replace(setup, baseline=part))


@pytest.mark.parametrize("name", ["anchor", "construct"])
def test_close_that_could_not_be_stored_is_stored_by_the_next_call(
    fleet: ToyFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(*_: object) -> None:
        raise StoreError("no space left")

    fresh = ToyFleet(tmp_path / "fresh", TENSORS, fleet.bits)
    owner = fresh.owners[0] if name == "anchor" else fleet.owners[0]
    owner.fence(ONE, fleet.records[0])
    call = owner.anchor if name == "anchor" else lambda: owner.construct(ONE, fleet.records[0], False, XOR)
    transport = owner._setup.transport
    with monkeypatch.context() as patch:
        patch.setattr(transport, "close", full)
        with pytest.raises(StoreError):
            call()
    assert call() == call()


def test_genesis_close_is_under_attempt_zero(fleet: ToyFleet) -> None:
    assert fleet.owners[0].anchor().attempt == GENESIS
