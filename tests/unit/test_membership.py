"""Who may serve and who must take part: the rules, the coordinator's book, and eviction by a fake clock."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from dcr.commit.book import MembershipBook
from dcr.commit.calls import PartiesFailed
from dcr.commit.context import Context
from dcr.commit.effects import CompareAndSet, Pause, ReadState, Script
from dcr.commit.membership import (
    check_grant,
    check_name,
    check_quorum,
    evict,
    grant_lease,
    join_run,
    leave_run,
    look_after,
    to_evict,
)
from dcr.commit.register import WRITE_TRIES, open_transition
from dcr.commit.transitions import join, mark_opened, new_run, prepare, take_over
from dcr.config import CommitConfig
from dcr.errors import AttemptFailed, ConfigError, Conflict, OutcomeUnknown, StoreError, Unreachable
from dcr.model import GENESIS, AttemptId, CandidateId, Catalogue, CommitRecord, ControlState, LeaseGrant

if TYPE_CHECKING:
    from collections.abc import Iterator

RUN = "r" * 32
RECORD = CommitRecord(RUN, 0, GENESIS, 1, "w0", None, 0, "cat", "man", "aud")
NAMES = ("a", "b", "c")
CONFIG = CommitConfig(lease_s=10.0, lease_skew_s=1.0, evict_after_s=30.0)


class Clock:
    """Passes by pausing; a pause may end ``early`` by so many seconds."""

    def __init__(self) -> None:
        self.now, self.early = 100.0, 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += max(seconds - self.early, 0.01)
        self.early = 0.0


class Plane:
    """Performs the effects of a script; ``refused`` answers of writes come first."""

    def __init__(self, state: ControlState, clock: Clock) -> None:
        self.state, self.clock = state, clock
        self.pauses: list[float] = []
        self.answers: Iterator[Any] = iter(())
        self.on_pause: Any = None

    def run(self, script: Script[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                effect = script.send(answer)
            except StopIteration as end:
                return end.value
            answer = self._perform(effect)

    def _perform(self, effect: object) -> object:
        match effect:
            case ReadState():
                return self.state
            case Pause(seconds):
                self.pauses.append(seconds)
                self.clock.pause(seconds)
                if self.on_pause is not None:
                    self.on_pause()
                return None
            case CompareAndSet(expected, state):
                answer = next(self.answers, None)
                if answer is None:
                    assert expected == self.state
                    self.state = state
                return answer
            case _:
                raise AssertionError(effect)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def plane(clock: Clock) -> Plane:
    return Plane(new_run(RECORD, NAMES), clock)


@pytest.fixture
def context(clock: Clock) -> Context:
    catalogue = Catalogue(RUN, "k" * 32, ())
    return Context(RUN, 1, ("owner-0",), NAMES, catalogue, CONFIG, lambda: "n", clock)


def silent(clock: Clock, *names: str) -> PartiesFailed:
    """Of all members, these did not answer."""
    answers: dict[str, object] = dict.fromkeys(NAMES) | {name: Unreachable("no answer") for name in names}
    return PartiesFailed(answers, clock.now)


# ---- rules ----


def test_a_lease_is_for_members_that_stand_on_what_is_committed() -> None:
    state = new_run(RECORD, NAMES)
    check_grant(state, 1, "a", GENESIS)
    for epoch, name, held, why in (
        (2, "a", GENESIS, "stand down"),
        (1, "d", GENESIS, "not a member"),
        (1, "a", AttemptId(1, 1), "holds attempt 1-1, but 0-0 is committed"),
        (1, "a", None, "holds no version"),
    ):
        with pytest.raises(Conflict, match=why):
            check_grant(state, epoch, name, held)


def test_who_has_failed_long_enough_is_evicted_while_enough_remain() -> None:
    failing = {"a": 70.0, "b": 60.0, "c": 71.0, "z": 0.0}
    assert to_evict(NAMES, failing, 100.0, CONFIG) == ["b", "a"]
    assert to_evict(NAMES, failing, 100.0, replace(CONFIG, min_receivers=2)) == ["b"]
    assert to_evict(NAMES, failing, 100.0, replace(CONFIG, min_receivers=3)) == []
    assert to_evict(NAMES, failing, 99.9, CONFIG) == ["b"]
    assert to_evict(NAMES, {}, 100.0, CONFIG) == []
    for never in (replace(CONFIG, evict_after_s=0.0), replace(CONFIG, lease_s=0.0)):
        assert to_evict(NAMES, failing, 1e9, never) == [], "nobody would know when it stops to serve"


def test_a_call_to_a_receiver_waits_no_longer_than_the_policy() -> None:
    assert CONFIG.patience_s(60.0) == 30.0
    assert CONFIG.patience_s(5.0) == 5.0
    assert replace(CONFIG, evict_after_s=0.0).patience_s(60.0) == 60.0
    assert all(CommitConfig().patience_s(seconds) == seconds for seconds in (60.0, 300.0))


def test_a_quorum_is_required_and_names_are_checked() -> None:
    check_quorum(("a",), CONFIG)
    with pytest.raises(AttemptFailed, match=r"0 receivers are members, commit.min_receivers is 1: start"):
        check_quorum((), CONFIG)
    with pytest.raises(AttemptFailed, match=r"1 receivers are members \(a\), commit.min_receivers is 2"):
        check_quorum(("a",), replace(CONFIG, min_receivers=2))
    check_name("runtime-7", ("owner-0",))
    for name in ("", "a/b", "../x", "owner-0"):
        with pytest.raises(ConfigError, match=r"receiver .*name"):
            check_name(name, ("owner-0",))


# ---- the book ----


def test_the_book_grants_until_it_refuses_and_again_after_admission() -> None:
    book = MembershipBook()
    book.take_over(5.0)
    book.grant("a", "i", 20.0)
    assert (book.refuse("a"), book.refuse("b")) == (20.0, 5.0)
    with pytest.raises(Conflict, match="evicted"):
        book.grant("a", "i", 21.0)
    assert book.refuse("a") == 20.0
    book.admit("a", "i")
    book.grant("a", "i", 30.0)
    assert book.refuse("a") == 30.0


def test_the_process_that_a_new_one_of_its_name_replaced_is_granted_nothing() -> None:
    book = MembershipBook()
    book.grant("a", "first", 1.0)
    book.meet("a", "second")
    with pytest.raises(Conflict, match="a was restarted as second; first must not serve"):
        book.grant("a", "first", 2.0)
    book.grant("a", "second", 3.0)


def test_failing_counts_from_the_first_of_attempts_in_a_row() -> None:
    book = MembershipBook()
    assert book.note("bc", {"a": 1.0}) == {"a": 1.0}
    assert book.note("c", {"a": 5.0, "b": 5.0}) == {"a": 1.0, "b": 5.0}
    assert book.note("ac", {"b": 9.0}) == {"b": 5.0}
    assert book.note((), {}) == {"b": 5.0}, "it was not asked"
    assert book.note("c", {"a": 12.0, "b": 12.0}) == {"a": 12.0, "b": 5.0}
    book.admit("b", "i")
    assert book.note("c", {"a": 20.0, "b": 20.0}) == {"a": 12.0, "b": 20.0}
    assert book.note("abc", {}) == {}


def test_only_those_that_did_not_answer_are_silent() -> None:
    failed = PartiesFailed({"a": Unreachable("gone"), "b": AttemptFailed("a check failed"), "c": None}, 7.0)
    assert failed.silent == {"a": 7.0}
    assert failed.answered == frozenset("bc")
    assert str(failed) == "a: Unreachable: gone; b: AttemptFailed: a check failed"


def test_only_the_process_that_has_the_name_leaves(plane: Plane, context: Context) -> None:
    """The request of one that has ended arrives late: its successor serves already."""
    context.book.meet("b", "second")
    for name, incarnation in (("b", "first"), ("a", "first")):
        with pytest.raises(Conflict, match=f"not as {incarnation}"):
            plane.run(leave_run(context, name, incarnation))
    assert plane.state.members == NAMES
    grant_lease(context, plane.state, receiver="b", incarnation="second", held=GENESIS)
    assert plane.run(leave_run(context, "b", "second")).members == ("a", "c")
    with pytest.raises(Conflict, match="evicted"):
        grant_lease(context, new_run(RECORD, NAMES), receiver="b", incarnation="second", held=GENESIS)


def begun(context: Context, plane: Plane, script: Script[Any]) -> CompareAndSet:
    """The write that ``script`` would make to what is stored now."""
    assert isinstance(next(script), ReadState)
    write = script.send(plane.state)
    assert isinstance(write, CompareAndSet)
    return write


@pytest.mark.parametrize("answered", [True, False])
def test_a_leaving_that_hangs_does_not_remove_the_successor(
    plane: Plane, context: Context, answered: bool
) -> None:
    """Its write arrives when the next process of that name is a member, and perhaps has not heard so yet."""
    context.book.meet("b", "first")
    leaving = leave_run(context, "b", "first")
    late = begun(context, plane, leaving)
    joining = join_run(context, "b", RECORD, "second")
    plane.state = begun(context, plane, joining).state
    if answered:
        with pytest.raises(StopIteration):
            joining.send(None)
        grant_lease(context, plane.state, receiver="b", incarnation="second", held=GENESIS)
    assert late.expected != plane.state, "the control plane would take it"
    assert isinstance(leaving.send(Conflict("another value")), ReadState)
    with pytest.raises(Conflict, match="b is known as second here, not as first"):
        leaving.send(plane.state)


def test_a_member_is_not_written_again_unless_its_removal_may_be_under_way(
    plane: Plane, context: Context
) -> None:
    before = plane.state
    plane.run(join_run(context, "b", RECORD, "first"))
    assert plane.state is before
    context.book.refuse("b")
    plane.run(join_run(context, "b", RECORD, "first"))
    after = plane.state
    assert (after.members, after.revision) == (NAMES, before.revision + 1)
    plane.run(join_run(context, "b", RECORD, "first"))
    assert plane.state is after


# ---- eviction ----


def test_an_eviction_waits_out_the_last_lease_and_the_skew(plane: Plane, context: Context) -> None:
    grant = grant_lease(context, plane.state, receiver="b", incarnation="i", held=GENESIS)
    assert grant == LeaseGrant(10.0)
    plane.clock.now += 4.0
    plane.clock.early = 3.0  # a pause that ends too soon
    plane.run(evict(context, "b"))
    assert plane.pauses == [7.0, 3.0]
    assert plane.clock.now == 111.0
    assert plane.state.members == ("a", "c")


def test_nobody_knows_what_an_earlier_coordinator_granted(plane: Plane, context: Context) -> None:
    context.book.take_over(plane.clock.now)
    plane.clock.now += 2.0
    plane.run(evict(context, "b"))
    assert plane.pauses == [9.0]


def test_a_lease_that_has_run_out_is_not_waited_for(plane: Plane, context: Context) -> None:
    context.book.take_over(plane.clock.now)
    grant_lease(context, plane.state, receiver="b", incarnation="i", held=GENESIS)
    plane.clock.now += 11.0
    plane.run(evict(context, "b"))
    assert plane.pauses == []


def test_nothing_is_granted_while_an_eviction_waits_nor_after_it(plane: Plane, context: Context) -> None:
    """Also not on a value that was read before it."""
    context.book.take_over(plane.clock.now)
    before, refused = plane.state, []

    def ask() -> None:
        with pytest.raises(Conflict, match="evicted") as err:
            grant_lease(context, before, receiver="b", incarnation="i", held=GENESIS)
        refused.append(err)

    plane.on_pause = ask
    plane.run(evict(context, "b"))
    assert "b" not in plane.state.members
    ask()
    assert len(refused) == 2


def test_a_straggler_goes_when_its_time_is_over_and_answers_clear_it(plane: Plane, context: Context) -> None:
    clock = plane.clock
    for seconds, members in ((0.0, NAMES), (29.0, NAMES), (1.0, ("a", "c"))):
        clock.now += seconds
        plane.run(look_after(context, silent(clock, "b", "owner-0")))
        assert plane.state.members == members
    plane.run(look_after(context, silent(clock, "a")))
    plane.run(look_after(context, silent(clock, "owner-0")))
    clock.now += 40.0
    plane.run(look_after(context, silent(clock, "a")))
    assert plane.state.members == ("a", "c"), "it answered in between"
    plane.run(look_after(context, StoreError("nobody was asked anything")))
    clock.now += 30.0
    plane.run(look_after(context, silent(clock, "a")))
    left: tuple[str, ...] = plane.state.members
    assert left == ("c",)


def test_an_eviction_that_fails_is_made_again(
    plane: Plane, context: Context, caplog: pytest.LogCaptureFixture
) -> None:
    plane.run(look_after(context, silent(plane.clock, "b")))
    plane.clock.now += 30.0
    plane.answers = iter([StoreError("the disk is full")])
    plane.run(look_after(context, silent(plane.clock, "b")))
    assert (plane.state.members, "nobody could be evicted" in caplog.text) == (NAMES, True)
    plane.run(look_after(context, silent(plane.clock, "b")))
    assert plane.state.members == ("a", "c")


def test_an_eviction_that_arrives_late_does_not_remove_who_was_admitted_since(
    plane: Plane, context: Context
) -> None:
    """Nobody knows what became of its write, and the receiver is back."""
    plane.run(look_after(context, silent(plane.clock, "b")))
    plane.clock.now += 30.0
    expected = plane.state
    plane.answers = iter([OutcomeUnknown("no answer")] * WRITE_TRIES)
    plane.run(look_after(context, silent(plane.clock, "b")))
    plane.run(join_run(context, "b", RECORD, "i"))
    grant_lease(context, plane.state, receiver="b", incarnation="i", held=GENESIS)
    assert expected != plane.state, "the control plane would take it"


def test_a_replaced_coordinator_evicts_nobody(plane: Plane, context: Context) -> None:
    plane.state = take_over(plane.state, "t")
    with pytest.raises(Conflict, match="stand down"):
        plane.run(evict(context, "b"))
    assert plane.state.members == NAMES


# ---- members and attempts ----


def attempted(state: ControlState) -> tuple[ControlState, AttemptId]:
    state = prepare(state, CandidateId(1, ("i",)), epoch=1, nonce="p")
    assert state.active is not None
    return state, state.active.attempt


def test_an_attempt_is_not_opened_with_other_members_than_it_was_prepared_with(
    plane: Plane, context: Context
) -> None:
    plane.state, attempt = attempted(plane.state)
    required = plane.state.members
    context.book.meet("c", "i")
    plane.run(leave_run(context, "c", "i"))
    with pytest.raises(AttemptFailed, match="c joined or left"):
        plane.run(open_transition(context, attempt, required))
    plane.state = join(plane.state, "c", RECORD, epoch=1, nonce="j")
    assert plane.run(open_transition(context, attempt, required)).active.opened


def test_who_joined_while_the_opened_mark_was_lost_is_noticed_too(plane: Plane, context: Context) -> None:
    """The write took effect, its answer was lost; then somebody joined."""
    plane.state, attempt = attempted(plane.state)
    required = plane.state.members

    class Lossy(Plane):
        def _perform(self, effect: object) -> object:  # type: ignore[explicit-override]
            if isinstance(effect, CompareAndSet):
                marked = mark_opened(self.state, attempt, nonce="o")
                self.state = join(marked, "d", RECORD, epoch=1, nonce="j")
                return OutcomeUnknown("no answer")
            return super()._perform(effect)

    lossy = Lossy(plane.state, plane.clock)
    with pytest.raises(AttemptFailed, match="d joined or left"):
        lossy.run(open_transition(context, attempt, required))
