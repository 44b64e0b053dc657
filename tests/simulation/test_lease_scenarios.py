"""Straight-line cases of membership and leases: orders that chance reaches too seldom to rely on."""

from collections.abc import Iterator
from typing import Any

import pytest

from dcr.commit import coordinator as commit_coordinator
from dcr.commit import rules
from dcr.commit.book import MembershipBook
from dcr.commit.effects import Call
from dcr.model import ReceiverState
from tests.simulation.bugs import RARE
from tests.simulation.clocks import FAST, LEASE_S
from tests.simulation.coordinators import Coordinator
from tests.simulation.fleet import is_commit
from tests.simulation.test_scenarios import ask, asks_for, check_finished, coordinator, refit, run, words
from tests.simulation.world import World


@pytest.fixture
def world() -> Iterator[World]:
    world = World(max_attempts=3)
    yield world
    world.close()


@pytest.fixture
def hurried() -> Iterator[World]:
    """Coordinators' clocks are the fastest that is assumed; they evict before leases end."""
    world = World(max_attempts=3, rates=(FAST, 1.0, 1.0, 1.0))
    world.config.evict_after_s = LEASE_S / 2
    yield world
    world.close()


def seed_bug(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Replace functions of the real code as ``tests.simulation.bugs`` says."""
    for target, attribute, replacement in RARE[name]:
        assert hasattr(target, attribute), "the code was renamed: this bug is no longer seeded"
        monkeypatch.setattr(target, attribute, replacement)


def tick(world: World, num: int) -> None:
    """Time passes."""
    for _ in range(num):
        world.tick()
        world.check()


def serving(world: World) -> Coordinator:
    """A coordinator whose receivers serve version 1."""
    one = coordinator(world)
    refit(world, one, words(i0=1))
    return one


def members(world: World) -> list[str]:
    """Who must take part in commits."""
    return list(world.state.members)


def of(calls: list[Call], receiver: str) -> Call:
    """That receiver's one."""
    return next(call for call in calls if call.target == receiver)


def test_a_restore_that_comes_again_after_the_attempt_was_opened_does_nothing(world: World) -> None:
    """With it, a late settle would open the gate at v while v + 1 is committed."""
    one = serving(world)
    world.receivers[0].start()
    settled = Call("runtime-0", "settle", {"record": world.state.record})
    world.train(words(i0=1, i1=2))
    ask(world, one)
    run(one, asks_for("restore"))
    again = of(one.pending, "runtime-0")
    run(one, is_commit)
    tick(world, 10)
    world.deliver(again)
    world.deliver(settled)
    tick(world, 5)
    run(one)
    check_finished(world)


def test_a_lease_runs_out_before_a_cut_off_member_is_left_out(world: World) -> None:
    """Its answers stop, the others go on, and it comes back by itself."""
    one = serving(world)
    cut = world.receivers[1]
    cut.cut_off, cut.frozen = 400, False
    cut.serving.enter(300)
    refit(world, one, words(i0=1, i2=2))
    assert members(world) == ["runtime-0"]
    assert not cut.serving.gate.is_open
    cut.serving.end_all()
    assert world.events["answer dropped, its lease has run out"] == 1
    cut.cut_off = 0
    for _ in range(60):
        if asking := world.asking():
            one.ask_admit(asking[0])
            run(one)
        world.tick()
        world.check()
    assert members(world) == ["runtime-0", "runtime-1"]
    assert cut.serving.gate.is_open


@pytest.mark.parametrize("bug", ["", "skew_not_waited_out", "new_coordinators_wait_for_no_lease"])
@pytest.mark.parametrize("replaced", [False, True])
def test_clocks_that_differ_leave_no_time_in_which_an_excluded_member_serves(
    hurried: World, monkeypatch: pytest.MonkeyPatch, bug: str, replaced: bool
) -> None:
    """Its lease is from the moment before nothing reached it any more, perhaps by another coordinator."""
    one = serving(hurried)
    cut = hurried.receivers[1]
    asked = cut.renewals.lease.left_s()
    while cut.renewals.lease.left_s() <= asked:  # until it has just been renewed
        asked = cut.renewals.lease.left_s()
        tick(hurried, 1)
    if replaced:
        one = coordinator(hurried)
    cut.cut_off, cut.frozen = 10_000, False
    if bug:
        seed_bug(monkeypatch, bug)
    hurried.train(words(i0=1, i2=2))
    ask(hurried, one)
    if bug and (replaced or bug == "skew_not_waited_out"):
        with pytest.raises(AssertionError, match="runtime-1"):
            run(one)
    else:
        run(one)
        assert members(hurried) == ["runtime-0"]
        assert not cut.serving.gate.is_open


@pytest.mark.parametrize("seeded", [False, True])
def test_what_another_candidate_left_is_not_repaired_by_this_ones_overwrites(
    world: World, monkeypatch: pytest.MonkeyPatch, seeded: bool
) -> None:
    """The trainer comes back with other weights after a part of the first ones was applied.

    The bug: the opened mark outlives its candidate.
    """
    one = serving(world)
    world.train(words(i0=1, i1=2))
    ask(world, one)
    run(one, asks_for("finish"))
    for receiver in world.receivers[:2]:
        receiver.pump()
    for call in one.pending:
        one.lose_call(call, executed=False, crash_at=0)
    world.restart_trainer(words(i0=1, i4=8))
    if seeded:
        seed_bug(monkeypatch, "candidate_swapped_on_retry")
    run(one)
    ask(world, one)
    if seeded:
        with pytest.raises(AssertionError, match="committed other bits"):
            run(one)
    else:
        run(one)
        check_finished(world)


@pytest.mark.parametrize("seeded", [False, True])
def test_a_process_that_came_later_gets_no_lease_in_the_midst_of_an_attempt(
    world: World, monkeypatch: pytest.MonkeyPatch, seeded: bool
) -> None:
    """It acknowledged and died, and a coordinator of long ago brings its successor to v.

    The bug: any process of that name is granted a lease.
    """
    first = serving(world)
    world.receivers[0].start()
    first.ask_admit("runtime-0")
    old: list[Call] = []
    while first.script is not None:
        old += first.pending
        first.perform()
    second = coordinator(world)
    world.train(words(i0=1, i1=2))
    ask(world, second)
    run(second, is_commit)
    world.receivers[0].start()
    for call in old:
        world.deliver(call)
    if seeded:
        grant = MembershipBook.grant
        monkeypatch.setattr(MembershipBook, "grant", lambda self, name, _, now: grant(self, name, "any", now))
        second.leasing.book._incarnations.clear()  # type: ignore[union-attr]
    assert world.receivers[0].standing.state is ReceiverState.CLEAN
    tick(world, 5)
    if seeded:
        with pytest.raises(AssertionError, match="serves while"):
            run(second)
    else:
        run(second)
        assert not world.receivers[0].serving.gate.is_open


@pytest.mark.parametrize("seeded", [False, True])
def test_what_was_opened_before_the_chain_of_attempts_began_is_restored(
    world: World, monkeypatch: pytest.MonkeyPatch, seeded: bool
) -> None:
    """A's first attempt is opened at a member that comes back, when B's chain is long open.

    The bug: ``since`` is not looked at.
    """
    first = serving(world)
    world.train(words(i0=1, i4=8))
    ask(world, first)
    run(first, asks_for("open_apply"))
    late = of(first.pending, "runtime-1")
    for call in first.pending:
        if call.method == "construct":
            first.answer(call, world.deliver(call))
    world.restart_trainer(words(i0=1, i1=2))
    world.receivers[1].cut_off = 10_000
    second = coordinator(world)
    ask(world, second)
    run(second, asks_for("finish"))
    assert members(world) == ["runtime-0"]
    third = coordinator(world)
    world.receivers[1].cut_off = 0
    third.ask_admit("runtime-1")
    run(third)
    assert members(world) == ["runtime-0", "runtime-1"]
    world.deliver(late)
    world.receivers[1].pump()
    if seeded:
        needs = rules.needs_restore

        def without_since(report: Any, version: int, active: Any = None) -> bool:
            return report.state is not ReceiverState.MIXED and needs(report, version, active)

        monkeypatch.setattr(commit_coordinator, "needs_restore", without_since)
    ask(world, third)
    if seeded:
        with pytest.raises(AssertionError, match="committed other bits"):
            run(third)
    else:
        run(third)
        check_finished(world)
