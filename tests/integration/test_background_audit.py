"""Background audit in a whole run: quiet through refits and kills; a flipped bit is found and repaired."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from dcr import observe
from dcr.model import ReceiverState
from dcr.receiver.lanes import lanes
from dcr.testing.in_turn import decoding_in_turn
from dcr.testing.world import RECEIVERS, World, crashing

_log = logging.getLogger(__name__)
LONG = 1000, 300
"""Refits and the least deaths of the long run: some 40 minutes of one core."""

POINTS = (
    "receiver.open_apply.after", "receiver.payload.after", "receiver.item.copy", "receiver.finish.after",
    "receiver.settle.before", "coordinator.commit.before", "coordinator.commit.after", "owner.publish.after",
)  # fmt: skip


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr("os.fsync", lambda _: None)
    made = World(tmp_path, slice_bytes=256)
    made.create()
    with decoding_in_turn():  # scans come at points of the fetching too, in the thread that holds the lock
        yield made


def scanning(world: World) -> Callable[[observe.Event], None]:
    """At every named point, whatever is under way, every living receiver is asked to scan a slice."""
    busy: list[observe.Event] = []

    def listener(event: observe.Event) -> None:
        if busy or event.name == "receiver.scan":
            return
        busy.append(event)
        try:
            for agent in list(world.receivers.values()):
                agent.examine()
        finally:
            busy.clear()

    return listener


def served(world: World) -> list[int | None]:
    """By instance."""
    return [world.gates[name].version for name in RECEIVERS]


def full_pass(world: World, name: str) -> None:
    """Until a pass has ended or the instance is out."""
    agent = world.receivers[name]
    before = agent.diagnose().audit.num_passes
    while agent.examine() and agent.diagnose().audit.num_passes == before:
        pass


@pytest.mark.parametrize(("num_refits", "num_deaths"), [(12, 4), pytest.param(*LONG, marks=pytest.mark.slow)])
def test_refits_and_kills_give_no_false_alarm(world: World, num_refits: int, num_deaths: int) -> None:
    """Scans come at every point of every party, kills at random ones; nothing is wrong, nothing is found."""
    rng = np.random.default_rng(11)
    for step in range(1, num_refits + 1):
        point = str(rng.choice(POINTS)) if step % 2 else "none"
        with observe.listening(scanning(world)), crashing(point, int(rng.integers(1, 4))):
            world.drive(step)
        for name in RECEIVERS:
            world.service.admit(name)
            assert world.receivers[name].diagnose().audit.finding is None, step
            assert (step > 12 and step % 50) or world.differing_bits(name, step) == 0
        if step % 100 == 0:
            _log.info("%d refits, %d deaths", step, len(world.deaths))
    assert len(world.deaths) >= num_deaths
    for name in RECEIVERS:
        full_pass(world, name)
        done = world.receivers[name].diagnose().audit
        assert done.finding is None
        assert done.num_passes >= 1


def test_a_flipped_bit_anywhere_is_found_in_one_pass_named_and_repaired(world: World) -> None:
    """Also where the loader casts, broadcasts or transposes; other instances go on serving."""
    world.drive(1)
    named = set()
    for resident in world.runtimes["runtime-1"].resident():
        storage = lanes(world.runtimes["runtime-1"].data(resident)).reshape(-1)
        if resident == "position" or not storage.numel():
            continue  # no weight of the trainer is in it
        storage[0] ^= 1
        full_pass(world, "runtime-1")
        agent = world.receivers["runtime-1"]
        finding = agent.diagnose().audit.finding
        assert finding is not None, resident
        assert agent.lost.is_set()
        assert agent.report().state is ReceiverState.EMPTY
        assert served(world) == [1, None]
        assert sum(stop - start for start, stop in finding.ranges) == 1, resident
        named.add(finding.tensor)
        world.service.admit("runtime-1")
        assert world.differing_bits("runtime-1", 1) == 0
        assert served(world) == [1, 1]
        assert not agent.lost.is_set()
    assert {"embed.weight", "decay", "both", "repeated", "down.weight"} <= named


def test_padding_that_lost_its_constant_is_found(world: World) -> None:
    """No weight reaches it, so no digest of a tensor has it."""
    world.drive(1)
    world.runtimes["runtime-0"].data("padded")[6, 1] = 1
    full_pass(world, "runtime-0")
    finding = world.receivers["runtime-0"].diagnose().audit.finding
    assert finding is not None
    assert (finding.tensor, finding.ranges) == ("(padding)", ())
    assert "padded: 1 padding elements no longer hold" in finding.detail
    world.service.admit("runtime-0")
    assert world.differing_bits("runtime-0", 1) == 0
    assert served(world) == [1, 1]
