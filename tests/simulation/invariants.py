"""What must hold in every simulated world, whatever was lost, late, twice or killed."""

from typing import TYPE_CHECKING

import numpy as np

from dcr.commit.context import Rollback
from dcr.errors import StoreError
from dcr.model import AttemptId, CommitRecord, ControlState, Manifest, ReceiverState, from_json
from dcr.transport.replay import replay
from tests.simulation.owners import Owner
from tests.simulation.parties import CATALOGUE
from tests.simulation.receivers import Receiver

if TYPE_CHECKING:
    from tests.simulation.world import World


def check(world: "World") -> None:
    """After every step."""
    state = world.state
    for receiver in world.receivers:
        if not receiver.gone:
            _check_receiver(world, receiver)
            _check_lease(receiver, state)
    for owner in world.owners:
        _check_owner(world, owner)


def check_commit(world: "World", before: ControlState, after: ControlState) -> None:
    """At the very write that moves the record; from here on the truth of that version is known."""
    record, active = after.record, before.active
    assert active is not None
    assert record.version == before.record.version + 1, "a version was lost or committed twice"
    assert record.attempt == active.attempt, "the record names an attempt that was replaced"
    assert record.attempt not in world.given_up, "what was reported as failed is committed"
    acks = world.acks.get(record.attempt, {})
    assert set(acks) >= set(before.members), "committed before every member finished"
    assert len(before.members) >= world.config.min_receivers, "committed by fewer than the minimum"
    _check_durable(world, record)
    world.truth[record.version] = world.presented_by(active.candidate)
    world.events["commits"] += 1
    world.events["commits without one that runs"] += any(
        not one.gone and one.name not in before.members for one in world.receivers
    )
    for name in before.members:
        if not (receiver := world.receiver(name)).gone:
            _check_member(world, receiver, record.attempt, acks[name])


def check_finished(world: "World") -> None:
    """After a transition without faults everybody holds and serves what the record names."""
    record, members = world.state.record, world.state.members
    for receiver in world.receivers:
        assert receiver.name in members, f"{receiver.name} was never admitted"
        gate = receiver.serving.gate
        assert gate.is_open, f"{receiver.name} does not serve"
        assert gate.version == record.version, f"{receiver.name} serves {gate.version}"
    for owner in world.owners:
        assert owner.baseline.version == record.version, f"{owner.name} has not folded in"
    rebuilt = replay(world.archive, record, CATALOGUE)
    wanted = world.truth[record.version]
    assert all(np.array_equal(rebuilt[name], words) for name, words in wanted.items()), "chain"


def check_rolled_back(world: "World", result: Rollback) -> None:
    """Whoever is said to serve does not hold another version by now, unless another coordinator went on."""
    for name in result.serving:
        receiver = world.receiver(name)
        if receiver.gone or world.state.record != result.record:
            continue
        standing = receiver.standing
        if standing.state is ReceiverState.CLEAN:
            assert standing.version == result.record.version, f"{name} was not rolled back"


def _check_receiver(world: "World", receiver: Receiver) -> None:
    """Nobody serves a mixture, or calls clean what is not."""
    standing = receiver.standing
    for version in receiver.serving.versions():
        assert version in world.truth, f"{receiver.name} serves {version}, which was never committed"
        truth = world.truth[version]
        assert receiver.serving.is_pure(truth), f"{receiver.name} serves other bits than {version}'s"
    if standing.state is ReceiverState.CLEAN:
        assert standing.version in world.truth, f"{receiver.name} calls {standing.version} clean"
        assert receiver.holds(world.truth[standing.version]), f"{receiver.name} is not clean"


def _check_lease(receiver: Receiver, state: ControlState) -> None:
    """Whoever may answer is a member, and answers with what is committed."""
    if receiver.renewals.lease.valid():
        assert receiver.name in state.members, f"{receiver.name} holds a lease and is no member"
    for version in receiver.serving.answering():
        wanted = state.record.version
        assert version == wanted, f"{receiver.name} answers with {version}, {wanted} is committed"


def _check_owner(world: "World", owner: Owner) -> None:
    """Trackers are a committed version, bit for bit."""
    version = owner.baseline.version
    if version < 0:
        return
    assert version in world.truth, f"{owner.name} tracks {version}, which was never committed"
    wrong = owner.tracks(world.truth[version])
    assert not wrong, f"{owner.name}: tracker of {wrong} is not version {version}"


def _check_durable(world: "World", record: CommitRecord) -> None:
    """Everything that the record names is in the archive."""
    try:
        world.archive.get_object("audit", record.audit)
        manifest = from_json(Manifest, world.archive.get_object("manifest", record.manifest))
        for ref in manifest.payloads:
            world.archive.get_payload(manifest, ref)
    except StoreError as err:
        raise AssertionError(f"version {record.version} names what is not stored: {err}") from err


def _check_member(world: "World", receiver: Receiver, attempt: AttemptId, acked_by: str) -> None:
    """What acknowledged and is complete holds what is committed now; anything else does not serve."""
    standing = receiver.standing
    if standing.state is ReceiverState.COMPLETE and standing.opened == attempt:
        assert receiver.holds(world.truth[attempt.version]), f"{receiver.name}: committed other bits"
        return
    died = receiver.incarnation != acked_by  # else a late copy of a call has restored it since
    world.events["died between its acknowledgment and the commit"] += died
    assert not receiver.serving.answering(), f"{receiver.name} serves while {attempt} is committed"
