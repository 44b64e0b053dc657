"""What stands in the store under an attempt's keys is not what its owners published.

A receiver applies payloads before any manifest names them, so bits that no owner sent may reach
storage. Whatever happens then, the version that is committed is the trainer's, bit for bit.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr import observe
from dcr.codec import Item, encode_payload
from dcr.model import AttemptId, Encoding
from dcr.testing.world import RECEIVERS, World
from dcr.transport.keys import payload_key


def next_attempt(world: World) -> AttemptId:
    """The one that the refit to version 2 begins with; admissions have numbers of their own."""
    return AttemptId(world.plane.read(world.catalogue.run).number + 1, 2)


def live(world: World) -> AttemptId:
    """The attempt that parties obey now."""
    active = world.plane.read(world.catalogue.run).active
    assert active is not None
    return active.attempt


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr("os.fsync", lambda _: None)
    made = World(tmp_path)
    made.create()
    made.drive(1)
    return made


def once_at(point: str, act: Callable[[], object]) -> AbstractContextManager[None]:
    """Do something the first time that a run passes ``point``."""
    fired: list[observe.Event] = []

    def listen(event: observe.Event) -> None:
        if event.name == point and not fired:
            fired.append(event)
            act()

    return observe.listening(listen)


def stray(world: World, owner: int, sequence: int, **claims: Any) -> bytes:
    """A whole payload that overwrites five elements which step 2 does not change."""
    spec = max(world.catalogue.tensors, key=lambda spec: spec.num_elements)
    old, new = world.truth(1)[spec.name], world.truth(2)[spec.name]
    where = np.flatnonzero(old == new)[:5].astype(np.int64)
    values = (old[where] ^ 1).astype(old.dtype)
    item = Item(spec.name, spec.shape, spec.dtype, Encoding.OVERWRITE, where, values)
    active = world.plane.read(world.catalogue.run).active
    attempt = next_attempt(world) if active is None else active.attempt
    fields: dict[str, Any] = {
        "attempt": attempt,
        "owner": owner,
        "sequence": sequence,
        "run": world.catalogue.run,
        "parent": 1,
        "catalogue": world.catalogue.digest(),
    }
    return encode_payload([item], **(fields | claims))


def place(world: World, owner: int, sequence: int, data: bytes) -> None:
    """Put bytes under a key of the live attempt, whether it is taken or not."""
    path = world.directory / "store" / payload_key(world.catalogue.run, live(world), owner, sequence)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def assert_exact(world: World) -> None:
    assert world.record().version == 2
    for name in RECEIVERS:
        world.service.admit(name)
        assert world.gates[name].version == 2
        assert world.differing_bits(name, 2) == 0
    assert world.tracker_errors(2) == []


@pytest.mark.parametrize("check", ["written", "off"])
@pytest.mark.parametrize(("owner", "sequence"), [(7, 0), (0, 99), (0, 0)], ids=["owner", "more", "replaced"])
def test_a_payload_that_no_owner_listed_leaves_nothing_behind(
    world: World, owner: int, sequence: int, check: str
) -> None:
    for name in RECEIVERS:
        world.bury(name)
    world.check = check
    data = stray(world, owner, sequence)
    with once_at("coordinator.finish.before", lambda: place(world, owner, sequence, data)):
        report = world.drive(2)
    assert report is not None
    assert report.num_attempts > 1
    assert_exact(world)


def test_what_an_attempt_applied_that_never_saw_its_manifest_is_found(world: World) -> None:
    def one_pump_then_no_more() -> None:
        place(world, 7, 0, stray(world, 7, 0))
        for name in RECEIVERS:
            assert world.receivers[name].pump()
        raise OSError("the owner's disk is gone")

    with once_at("owner.close.before", one_pump_then_no_more):
        report = world.drive(2)
    assert report is not None
    assert report.num_attempts > 1
    assert_exact(world)


FOREIGN = [{"run": "0" * 32}, {"attempt": AttemptId(1, 2)}, {"parent": 0}, {"catalogue": "1" * 32}]


@pytest.mark.parametrize("claims", FOREIGN, ids=lambda claims: next(iter(claims)))
@pytest.mark.parametrize("point", ["owner.task.before", "owner.close.before"])
def test_a_foreign_payload_under_a_live_key_is_never_applied(
    world: World, claims: dict[str, Any], point: str
) -> None:
    data = stray(world, 0, 0, **claims)
    with once_at(point, lambda: place(world, 0, 0, data)):
        world.drive(2)
    assert_exact(world)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "gone"])
def test_a_payload_damaged_after_it_was_published_costs_an_attempt(world: World, damage: str) -> None:
    path = world.directory / "store" / payload_key(world.catalogue.run, next_attempt(world), 0, 0)

    def spoil() -> None:
        data = path.read_bytes()
        path.unlink()
        spoilt = {
            "truncated": data[:-9],
            "flipped": data[:-9] + bytes([data[-9] ^ 4]) + data[-8:],
            "empty": b"",
        }
        if damage in spoilt:
            path.write_bytes(spoilt[damage])

    with once_at("owner.close.after", spoil):
        report = world.drive(2)
    assert report is not None
    assert report.num_attempts == 2
    assert_exact(world)


@pytest.mark.parametrize("damage", ["gone", "cut", "unknown field"])
def test_a_damaged_manifest_costs_an_attempt(world: World, damage: str) -> None:
    folder = world.directory / "store" / world.catalogue.run / "manifest"
    before = set(folder.iterdir())

    def spoil() -> None:
        (path,) = set(folder.iterdir()) - before
        data = path.read_bytes()
        if damage == "gone":
            path.unlink()
        else:
            path.write_bytes(data[:-4] if damage == "cut" else data[:-1] + b',"more":1}')

    with once_at("coordinator.finish.before", spoil):
        report = world.drive(2)
    assert report is not None
    assert report.num_attempts == 2
    assert_exact(world)
