"""Straight-line cases of the simulated world: the orders that the protocol's rules exist for."""

from collections.abc import Callable, Iterator

import pytest

from dcr.codec import decode_payload
from dcr.commit.effects import CompareAndSet, Effect
from dcr.errors import RefitError
from dcr.model import Encoding, Manifest, ReceiverState, from_json
from tests.simulation.bugs import BUGS
from tests.simulation.coordinators import Coordinator
from tests.simulation.fleet import has_call, is_commit
from tests.simulation.parties import Tensors, fresh_words
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World(max_attempts=3)
    yield world
    world.close()


def words(**flips: int) -> Tensors:
    """Version 0 with one word flipped, ``i3=0x10`` for word 3 of the split tensor."""
    made = fresh_words()
    for name, mask in flips.items():
        made["split"][int(name[1:])] ^= mask
    return made


def coordinator(world: World) -> Coordinator:
    """A new coordinator that has taken over."""
    new = Coordinator(world, world.context())
    new.start()
    run(new)
    world.desk = lambda: None if new.leasing is None else (new.leasing, world.state)
    return new


def run(one: Coordinator, until: Callable[[Effect | None], bool] = lambda effect: False) -> None:
    """Go on without faults until such an effect is next, or the script has ended."""
    for _ in range(1000):
        if one.script is None or until(one.effect):
            return
        one.perform()
        one.world.check()
    raise AssertionError("it does not end")


def refit(world: World, one: Coordinator, new: Tensors) -> None:
    """A whole transition without faults."""
    world.train(new)
    ask(world, one)
    run(one)
    check_finished(world)


def check_finished(world: World) -> None:
    """Everybody there holds and serves what is committed, once leases are renewed."""
    for _ in range(5):
        world.tick()
        world.check()
    served = [
        one.serving.gate.version for one in world.receivers if not one.gone and one.serving.gate.is_open
    ]
    assert served == [world.state.record.version] * len(world.state.members)
    for owner in world.owners:
        assert owner.baseline.version == world.state.record.version


def ask(world: World, one: Coordinator) -> None:
    """The trainer asks."""
    assert world.trainer.request is not None
    one.ask(world.trainer.request)


def asks_for(method: str) -> Callable[[Effect | None], bool]:
    """Whether the effect calls ``method``."""
    return lambda effect: has_call(effect, method)


def encodings(world: World) -> set[Encoding]:
    """Of all items of the committed version."""
    record = world.state.record
    manifest = from_json(Manifest, world.archive.get_object("manifest", record.manifest))
    payloads = [decode_payload(world.archive.get_payload(manifest, ref)) for ref in manifest.payloads]
    return {item.encoding for payload in payloads for item in payload.items}


def test_the_first_attempt_sends_differences_and_nothing_changed_is_a_version_too(world: World) -> None:
    one = coordinator(world)
    refit(world, one, words(i0=1, i5=2))
    assert encodings(world) == {Encoding.DELTA16}
    refit(world, one, words(i0=1, i5=2))
    assert encodings(world) == set()
    assert world.state.record.version == 2


@pytest.mark.parametrize("crash_at", [1, 2, 3, 4, 5, 6])
def test_a_survivor_is_repaired_by_overwrites_only(world: World, crash_at: int) -> None:
    """The other receiver dies while it finishes: before, inside, between and after its items."""
    one = coordinator(world)
    world.train(words(i0=1, i5=2))
    ask(world, one)
    run(one, asks_for("finish"))
    survivor, victim = one.pending
    one.answer(survivor, world.deliver(survivor))
    assert world.receivers[0].standing.state is ReceiverState.COMPLETE
    one.lose_call(victim, executed=True, crash_at=crash_at)
    run(one)
    check_finished(world)
    assert encodings(world) == {Encoding.OVERWRITE}
    assert world.state.record.version == 1


@pytest.mark.parametrize("crash_at", [1, 2, 3, 4])
def test_a_torn_fold_in_is_finished_or_rebuilt(world: World, crash_at: int) -> None:
    one = coordinator(world)
    world.train(words(i0=1, i1=4))
    ask(world, one)
    run(one, asks_for("fold_in"))
    call = one.pending[0]
    one.lose_call(call, executed=True, crash_at=crash_at)
    run(one)
    check_finished(world)


@pytest.mark.parametrize("landed", [True, False])
def test_a_lost_commit_answer_is_resolved(world: World, landed: bool) -> None:
    one = coordinator(world)
    world.train(words(i0=1))
    ask(world, one)
    run(one, is_commit)
    one.lose_write(landed=landed, delay=0)
    run(one)
    check_finished(world)
    assert world.state.record.version == 1
    assert encodings(world) == ({Encoding.DELTA16} if landed else {Encoding.OVERWRITE})


def test_a_commit_that_lands_late_meets_a_new_prepare(world: World) -> None:
    one = coordinator(world)
    world.train(words(i0=1))
    ask(world, one)
    run(one, is_commit)
    late = one.effect
    assert isinstance(late, CompareAndSet)
    one.lose_write(landed=False, delay=0)
    run(one, asks_for("stop_and_wait"))
    assert world.write(late) is not None, "the write that fences it was first"
    run(one)
    check_finished(world)


def test_a_slow_coordinator_finds_that_another_went_on(world: World) -> None:
    """It still folds v1 in while v2 is committed: that is no damage (found by the simulation)."""
    slow = coordinator(world)
    world.train(words(i0=1))
    ask(world, slow)
    run(slow, asks_for("fold_in"))
    other = coordinator(world)
    ask(world, other)
    run(other)
    refit(world, other, words(i0=3))
    run(slow)
    check_finished(world)
    assert world.state.record.version == 2


@pytest.mark.parametrize("restarted", [False, True])
def test_who_took_over_goes_on_though_the_last_commit_could_not_be_finished(
    world: World, restarted: bool
) -> None:
    """Owners stay away after the commit; the trainer asks again, or comes back with its next step."""
    first = coordinator(world)
    world.train(words(i0=1))
    ask(world, first)
    run(first, asks_for("fold_in"))
    second = Coordinator(world, world.context())
    second.start()
    world.desk = lambda: None if second.leasing is None else (second.leasing, world.state)
    while second.script is not None:
        for call in second.pending:
            second.lose_call(call, executed=False, crash_at=0)
        if second.script is not None:
            second.perform()
    assert world.events["run taken over, its commit not finished"] == 1
    assert [owner.baseline.version for owner in world.owners] == [0, 0]
    if restarted:
        world.restart_trainer()
        world.train(words(i0=1, i3=4))
    ask(world, second)
    run(second)
    check_finished(world)
    assert world.state.record.version == (2 if restarted else 1)


def test_a_replaced_candidate_leaves_nothing_behind(world: World) -> None:
    """All of A is applied, its commit never happens, the trainer comes back with B (P5)."""
    one = coordinator(world)
    world.train(words(i0=1, i4=8))
    ask(world, one)
    run(one, is_commit)
    one.lose_write(landed=False, delay=0)
    world.restart_trainer(words(i1=2))
    run(one)
    ask(world, one)
    run(one)
    check_finished(world)
    assert world.receivers[0].holds(words(i1=2))


def test_a_replaced_attempt_is_not_opened(world: World) -> None:
    open_a_replaced_attempt(world)


def test_without_fences_that_would_corrupt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, attribute, replacement in BUGS["no_fence"]:
        monkeypatch.setattr(target, attribute, replacement)
    with pytest.raises(AssertionError, match="committed other bits"):
        open_a_replaced_attempt(world)


def open_a_replaced_attempt(world: World) -> None:
    """open_apply of A's attempt arrives when B's attempt has fenced everybody and opens next."""
    first = coordinator(world)
    world.train(words(i0=1, i4=8))
    ask(world, first)
    run(first, asks_for("open_apply"))
    late = next(call for call in first.pending if call.target == "runtime-0")
    for call in first.pending:
        if call.method == "construct":
            first.answer(call, world.deliver(call))
    world.restart_trainer(words(i1=2))
    second = coordinator(world)
    ask(world, second)
    run(second, asks_for("open_apply"))
    answer = world.deliver(late)
    world.receivers[0].pump()
    run(second)
    assert isinstance(answer, RefitError), "a replaced attempt was opened"
    check_finished(world)
