"""The control plane's value as a state machine: what each step keeps, raises and refuses."""

from dataclasses import replace

import pytest

from dcr.commit.transitions import (
    abandon,
    commit,
    join,
    latest_attempt,
    leave,
    mark_opened,
    new_run,
    prepare,
    renumber,
    roll_back,
    take_over,
)
from dcr.errors import Conflict
from dcr.model import GENESIS, ActiveAttempt, AttemptId, CandidateId, CommitRecord, ControlState

A = CandidateId(1, ("a0", "a1"), "x")
B = CandidateId(1, ("b0", "a1"), "x")
RECORD = CommitRecord("r" * 32, 0, GENESIS, 1, "w0", None, 0, "cat", "man", "aud")


def start() -> ControlState:
    return new_run(RECORD)


def prepared(state: ControlState, candidate: CandidateId = A) -> tuple[ControlState, ActiveAttempt]:
    state = prepare(state, candidate, epoch=state.epoch, nonce="p")
    assert state.active is not None
    return state, state.active


def opened(state: ControlState, candidate: CandidateId = A) -> tuple[ControlState, AttemptId]:
    state, active = prepared(state, candidate)
    return mark_opened(state, active.attempt, nonce="o"), active.attempt


def following(state: ControlState, attempt: AttemptId) -> CommitRecord:
    old = state.record
    return replace(
        old, version=old.version + 1, attempt=attempt, epoch=state.epoch, writer="c", parent=old.attempt
    )


def test_every_step_raises_the_revision_and_names_its_writer() -> None:
    state, seen = start(), []
    for _ in range(2):
        one = take_over(state, "t")
        two, attempt = opened(one)
        last = commit(two, following(two, attempt))
        seen += [one.revision, two.revision, last.revision]
        assert (one.writer, two.writer, last.writer) == ("t", "o", "c")
        state = last
    assert seen == sorted(set(seen))


def test_attempt_numbers_are_run_wide_and_never_reset() -> None:
    state, attempts = start(), []
    for _ in range(3):
        state, first = prepared(state)
        state, second = opened(state)
        attempts += [first.attempt, second]
        state = commit(state, following(state, second))
    assert [attempt.number for attempt in attempts] == [1, 2, 3, 4, 5, 6]
    assert [attempt.version for attempt in attempts] == [1, 1, 2, 2, 3, 3]


def test_the_opened_mark_survives_retries_and_take_over_of_the_same_candidate() -> None:
    state, _ = opened(start())
    state, active = prepared(take_over(state, "t"))
    assert active.opened
    assert active.attempt.number == 2


def test_the_opened_mark_does_not_survive_another_candidate() -> None:
    state, _ = opened(start())
    state, active = prepared(state, B)
    assert not active.opened
    _, again = prepared(state, A)
    assert not again.opened, "what A opened is unknown once B was prepared"


def test_the_opened_mark_does_not_survive_a_commit_or_an_abandonment() -> None:
    state, attempt = opened(start())
    for ended in (commit(state, following(state, attempt)), abandon(state, attempt, nonce="a")):
        assert ended.active is None
        assert not prepared(ended)[1].opened


def test_a_replaced_epoch_can_neither_prepare_nor_commit() -> None:
    state, attempt = opened(start())
    record = following(state, attempt)
    taken = take_over(state, "t")
    with pytest.raises(Conflict, match="stand down"):
        prepare(taken, A, epoch=state.epoch, nonce="p")
    with pytest.raises(Conflict, match="stand down"):
        commit(taken, record)


def test_a_replaced_attempt_can_do_nothing() -> None:
    state, attempt = opened(start())
    state, _ = prepared(state)
    record = following(state, attempt)
    with pytest.raises(Conflict, match="not active"):
        commit(state, record)
    with pytest.raises(Conflict, match="not active"):
        mark_opened(state, attempt, nonce="o")
    with pytest.raises(Conflict, match="not active"):
        abandon(state, attempt, nonce="a")


def test_commit_needs_the_opened_mark() -> None:
    state, active = prepared(start())
    with pytest.raises(Conflict, match="never marked"):
        commit(state, following(state, active.attempt))


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"version": 0}, {"parent": None}, {"run": "q" * 32}, {"catalogue": "other"}],
)
def test_commit_needs_a_record_that_follows(change: dict[str, object]) -> None:
    state, attempt = opened(start())
    record = replace(following(state, attempt), **change)  # type: ignore[arg-type]
    with pytest.raises(Conflict, match="does not follow"):
        commit(state, record)


def test_a_chain_of_attempts_begins_anew_with_another_candidate_commit_or_abandonment() -> None:
    state, first = prepared(start())
    assert first.since == first.attempt.number == 1
    state, again = opened(take_over(state, "t"))
    assert state.active is not None
    assert (state.active.since, again.number) == (1, 2)
    _, other = prepared(state, B)
    assert (other.since, other.opened) == (3, False)
    back, _ = prepared(state, B)
    assert prepared(back, A)[1].since == 4, "whoever joined under B need not be clean of A"
    for ended in (commit(state, following(state, again)), abandon(state, again, nonce="a")):
        assert prepared(ended)[1].since == 3


def test_members_are_a_sorted_set_that_joins_and_leaves_change() -> None:
    state = new_run(RECORD, ["b", "a", "b"])
    assert state.members == ("a", "b")
    one = join(state, "aa", RECORD, epoch=1, nonce="j")
    assert (one.members, one.revision, one.writer) == (("a", "aa", "b"), 1, "j")
    two = leave(one, "a", epoch=1, nonce="l")
    assert (two.members, two.revision, two.writer) == (("aa", "b"), 2, "l")
    assert join(two, "b", RECORD, epoch=1, nonce="j") is two
    anew = join(two, "b", RECORD, epoch=1, nonce="k", anew=True)
    assert (anew.members, anew.revision, anew.writer) == (two.members, 3, "k")
    assert leave(two, "c", epoch=1, nonce="l") is two


def test_every_other_step_keeps_the_members() -> None:
    state, attempt = opened(new_run(RECORD, ["a"]))
    for after in (
        take_over(state, "t"),
        commit(state, following(state, attempt)),
        abandon(state, attempt, nonce="a"),
        roll_back(state, epoch=1, nonce="r"),
    ):
        assert after.members == ("a",)


def test_a_change_of_members_makes_a_prepared_commit_fail_and_keeps_the_attempt() -> None:
    """Its value is no longer the one that the commit expects; a retry goes on under the same chain."""
    state, attempt = opened(new_run(RECORD, ["a", "b"]))
    for changed in (
        leave(state, "b", epoch=1, nonce="l"),
        join(state, "c", RECORD, epoch=1, nonce="j"),
    ):
        assert changed != state
        assert changed.active == state.active
        again, active = prepared(changed)
        assert (active.opened, active.since, again.members) == (True, attempt.number, changed.members)


def test_who_joins_has_proven_what_is_committed() -> None:
    state, attempt = opened(new_run(RECORD, ["a"]))
    moved = commit(state, following(state, attempt))
    with pytest.raises(Conflict, match="b proved version 0, but 1 is committed"):
        join(moved, "b", RECORD, epoch=1, nonce="j")


def test_a_replaced_coordinator_changes_no_members_and_rolls_nothing_back() -> None:
    state = take_over(new_run(RECORD, ["a"]), "t")
    with pytest.raises(Conflict, match="stand down"):
        join(state, "b", RECORD, epoch=1, nonce="n")
    with pytest.raises(Conflict, match="stand down"):
        leave(state, "a", epoch=1, nonce="n")
    with pytest.raises(Conflict, match="stand down"):
        roll_back(state, epoch=1, nonce="n")


def test_a_new_number_keeps_the_transition_and_its_chain() -> None:
    state, attempt = opened(start())
    again = renumber(state, epoch=1, nonce="r")
    assert again.active is not None
    assert again.active.attempt == latest_attempt(again) == AttemptId(2, 1)
    assert (again.active.opened, again.active.since, again.active.candidate) == (True, attempt.number, A)
    alone = renumber(start(), epoch=1, nonce="r")
    assert (alone.active, latest_attempt(alone)) == (None, AttemptId(1, 1))
    with pytest.raises(Conflict, match="stand down"):
        renumber(take_over(start(), "t"), epoch=1, nonce="r")


def test_a_rollback_replaces_every_attempt_and_names_a_number_of_its_own() -> None:
    state, attempt = opened(start())
    back = roll_back(state, epoch=1, nonce="r")
    assert (back.active, back.record, latest_attempt(back)) == (None, RECORD, AttemptId(2, 1))
    assert latest_attempt(back) > attempt
    assert latest_attempt(start()) == GENESIS
    assert latest_attempt(state) == attempt
