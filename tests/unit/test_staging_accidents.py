"""Accidents to what is staged, each at its worst moment: the version is committed all the same."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.small_runs import CONFIG, NAMES, SmallRun, words

from dcr.errors import AttemptFailed, TransitionAbandoned
from dcr.model import to_json
from dcr.receiver.area import Room, StagingArea
from dcr.refit.collecting import Collector
from dcr.refit.site import Site

ASYNC = replace(CONFIG, mode="async", max_attempts=6)
VICTIM = NAMES[0]


class DiedError(BaseException):
    """Nobody catches it."""


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path, ASYNC).begin()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def fail_once() -> None:
    raise AttemptFailed("for once")


@pytest.mark.parametrize(
    "accident", [flip, Path.unlink, lambda path: path.write_bytes(b"")], ids=["flip", "unlink", "empty"]
)
def test_a_file_that_is_damaged_after_it_was_acknowledged(
    run: SmallRun, tmp_path: Path, accident: Callable[[Path], object]
) -> None:
    folder = tmp_path / "spill"
    run.receivers[VICTIM].agent._stager._area = StagingArea(Room(0, 1 << 20, folder))
    run.before[VICTIM, "open_apply"] = lambda: accident(max(folder.iterdir()))
    report = run.sync()
    assert report.num_attempts == 2
    assert run.served == [1] * len(NAMES)
    run.check()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("method", ["stage", "staged", "open_apply", "finish", "settle"])
def test_a_receiver_that_is_restarted_before_a_call(run: SmallRun, method: str) -> None:
    run.before[VICTIM, method] = lambda: run.restart(VICTIM)
    report = run.sync()
    run.renew()
    run.check()
    assert report.record.version == 1
    assert run.sync().record.version == 2
    run.renew()
    assert run.served == [2] * len(NAMES)
    run.check()


@pytest.mark.parametrize("method", ["staged", "open_apply", "finish", "settle"])
def test_a_coordinator_that_dies_before_a_call(run: SmallRun, method: str) -> None:
    def die() -> None:
        raise DiedError

    run.before[VICTIM, method] = die
    with pytest.raises(DiedError):
        run.sync()
    run.before.clear()
    run.service = run.new_service()
    run.service.open_run(resume=True, catalogue=run.fleet.catalogue)
    if run.state.record.version == 0:
        run.service.transition(run.step, 0)
    run.renew()
    assert run.served == [1] * len(NAMES)
    run.check()


def test_a_candidate_that_is_swapped_while_the_old_one_is_staged(run: SmallRun) -> None:
    def swap() -> None:
        run.step += 1
        for owner in run.fleet.owners:
            owner.withdraw()
        run.fleet.write(words(run.step))
        for owner in run.fleet.owners:
            owner.present(run.step)
        fail_once()

    run.before[VICTIM, "staged"] = swap
    with pytest.raises(TransitionAbandoned, match="was not presented"):
        run.sync()
    report = run.service.transition(run.step, 0)
    run.renew()
    assert {ref.attempt for ref in report.manifest.payloads} == {None}
    assert run.served == [1] * len(NAMES)
    run.check()


def test_a_run_that_is_tidied_between_two_attempts_keeps_what_the_second_names(
    run: SmallRun, tmp_path: Path
) -> None:
    site = Site(run.run_id, run.fleet.store, tmp_path)
    run.fleet.archive.put_object("catalogue", to_json(run.fleet.catalogue))

    def tidy() -> None:
        Collector(site).at_start(run.state.record)
        fail_once()

    run.before[VICTIM, "staged"] = tidy
    report = run.sync()
    assert report.num_attempts == 2
    assert None not in {ref.attempt for ref in report.manifest.payloads}
    Collector(site).at_start(run.state.record)  # as when the run is resumed
    run.restart(VICTIM)
    run.service.admit(VICTIM)
    run.renew()
    assert run.served == [1] * len(NAMES)
    run.check()
