"""The control plane's value as a state machine: what each step keeps, raises and refuses."""

from dataclasses import replace

import pytest

from dcr.commit.transitions import abandon, commit, mark_opened, new_run, prepare, take_over
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
