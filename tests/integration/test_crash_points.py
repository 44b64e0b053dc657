"""Every party dies at every named point of a transition; the run goes on as if nothing had happened.

One world per point: each transition of it crashes at the next occurrence of that point. Durability
against power loss is the stores' own test; here a crash loses memory only, so fsync is left out.
"""

from pathlib import Path

import pytest

from dcr import observe
from dcr.codec import decode_payload
from dcr.commit.context import TransitionReport
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.config import CodecConfig
from dcr.errors import OutcomeUnknown
from dcr.model import ControlState, Encoding, Manifest, from_json
from dcr.testing.world import RECEIVERS, World, crashing

COORDINATOR = [
    f"coordinator.{name}.{when}"
    for name in ("prepare", "mark_opened", "open_apply", "construct", "finish", "commit", "fold_in", "settle")
    for when in ("before", "after")
]
OWNER = [
    "owner.task.before", "owner.task.after", "owner.publish.before", "owner.publish.after",
    "owner.close.before", "owner.close.after", "owner.fold_in.task.before", "owner.fold_in.task.after",
]  # fmt: skip
RECEIVER = [
    "receiver.open_apply.before", "receiver.open_apply.after", "receiver.payload.before",
    "receiver.payload.after", "receiver.item.before", "receiver.item.copy", "receiver.item.after",
    "receiver.finish.before", "receiver.finish.after", "receiver.settle.before", "receiver.settle.after",
]  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("os.fsync", lambda _: None)
    made = World(tmp_path)
    made.create()
    return made


@pytest.mark.parametrize("point", [*COORDINATOR, *OWNER, *RECEIVER])
def test_a_crash_at_any_point_changes_nothing_in_the_end(world: World, point: str) -> None:
    with crashing("none", 0) as passed:
        world.drive(1)
    occurrences = passed[point]
    assert occurrences, f"{point} is never passed"
    for nth in range(1, occurrences + 1):
        step, deaths = nth + 1, len(world.deaths)
        with observe.listening(served_is_whole(world)), crashing(point, nth) as passed:
            report = world.drive(step)
        assert len(world.deaths) - deaths == (passed[point] >= nth), f"nobody died at {point} #{nth}"
        assert_committed(world, step)
        if len(world.deaths) == deaths:
            continue  # this step changes fewer tensors than the first one
        if report is not None and point.startswith("receiver.item"):
            assert_repaired_by_overwrites(world, report)


UNTOUCHED = [
    "coordinator.stage.after", "coordinator.staged.before", "coordinator.staged.after",
    "coordinator.mark_opened.before", "receiver.hold",
]  # fmt: skip
OPENED = ["coordinator.mark_opened.after", "coordinator.open_apply.after", "receiver.payload.before"]


@pytest.mark.parametrize("point", [*UNTOUCHED, *OPENED])
def test_a_crash_in_asynchronous_mode_changes_nothing_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """Before the opened mark retries reuse what is stored and send differences; after it, overwrites."""
    monkeypatch.setattr("os.fsync", lambda _: None)
    world = World(tmp_path, mode="async")
    world.create()
    world.drive(1)
    for step, nth in ((2, 1), (3, 2)):
        deaths = len(world.deaths)
        with observe.listening(served_is_whole(world)), crashing(point, nth) as passed:
            report = world.drive(step)
        assert len(world.deaths) - deaths == (passed[point] >= nth), f"nobody died at {point} #{nth}"
        assert_committed(world, step)
        if report is not None and len(world.deaths) > deaths:
            assert report.manifest.overwrite_only == (point in OPENED)
    world.drive(4)
    assert_committed(world, 4)


@pytest.mark.parametrize("point", ["owner.task.after", "owner.publish.before"])
def test_a_crash_of_one_thread_of_a_pipeline_kills_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    world = World(tmp_path, codec=CodecConfig(threads=2, chunk_mib=0, bucket_mib=0, dense_share=1.0))
    world.create()
    for step, nth in enumerate((1, 2, 4), start=1):
        deaths = len(world.deaths)
        with observe.listening(served_is_whole(world)), crashing(point, nth):
            world.drive(step)
        assert len(world.deaths) == deaths + 1, f"nobody died at {point} #{nth}"
        assert_committed(world, step)


def test_a_crash_while_a_receiver_restores_leaves_it_empty_and_it_restores_again(world: World) -> None:
    world.drive(1)
    for nth, point in enumerate(("receiver.restore.before", "receiver.restore.after"), start=2):
        with crashing("receiver.item.copy", 3), crashing(point, 1):
            world.drive(nth)
        assert_committed(world, nth)


class LosingPlane(MemoryControlPlane):
    """Loses the answer of the commit: ``lands`` is when the write takes effect."""

    def __init__(self, lands: str) -> None:
        super().__init__()
        self.lands = lands
        self.late: list[tuple[ControlState, ControlState]] = []
        self.num_lost = 0

    def compare_and_set(  # type: ignore[explicit-override]
        self, expected: ControlState, state: ControlState
    ) -> None:
        commits = state.record != expected.record
        if self.num_lost == 0 and commits and state.record.version == 2:
            self.num_lost += 1
            if self.lands == "at once":
                super().compare_and_set(expected, state)
            elif self.lands == "late":
                self.late.append((expected, state))
            raise OutcomeUnknown("the answer was lost")
        super().compare_and_set(expected, state)
        self._deliver_late()

    def _deliver_late(self) -> None:
        """After the fence: the delayed write arrives at last, and must be refused."""
        while self.late:
            expected, state = self.late.pop()
            with pytest.raises(Exception, match="revision"):
                super().compare_and_set(expected, state)


@pytest.mark.parametrize("lands", ["at once", "late", "never"])
def test_a_commit_whose_answer_is_lost_is_resolved_by_a_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lands: str
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    plane = LosingPlane(lands)
    world = World(tmp_path, plane=plane)
    world.create()
    world.drive(1)
    first = plane.read(world.catalogue.run).number + 1
    with observe.listening(served_is_whole(world)):
        report = world.drive(2)
    assert plane.num_lost == 1
    assert_committed(world, 2)
    assert report is not None
    kept = report.record.attempt.number == first
    assert kept == (lands == "at once"), "what landed is kept; else retried"
    world.drive(3)
    assert_committed(world, 3)


def served_is_whole(world: World) -> observe.Listener:
    """At each mark, a gate that is open stands before exactly the version that it names."""

    def look(_: observe.Event) -> None:
        for name in RECEIVERS:
            gate = world.gates.get(name)
            if gate is not None and gate.version is not None and name in world.receivers:
                assert world.record().version >= gate.version, "served before it was committed"

    return look


def assert_committed(world: World, step: int) -> None:
    record = world.record()
    assert (record.version, record.step) == (step, step)
    for name in RECEIVERS:
        world.service.admit(name)
        assert world.gates[name].version == record.version, f"{name} does not serve {record.version}"
        assert world.differing_bits(name, step) == 0
    assert world.tracker_errors(step) == []


def assert_repaired_by_overwrites(world: World, report: TransitionReport) -> None:
    manifest = from_json(Manifest, world.archive.get_object("manifest", report.record.manifest))
    assert manifest.overwrite_only
    for ref in manifest.payloads:
        payload = decode_payload(world.archive.get_payload(manifest, ref))
        assert {item.encoding for item in payload.items} == {Encoding.OVERWRITE}
