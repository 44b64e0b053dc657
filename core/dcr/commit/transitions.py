"""What may be written to the control plane: pure steps from one ControlState to the next (DESIGN P1-P5).

Each step raises ``revision`` and stamps the caller's fresh ``nonce``, so no value ever comes
back (no ABA); each verifies what must hold before it and raises Conflict otherwise.
"""

from collections.abc import Iterable
from dataclasses import replace

from dcr.errors import Conflict
from dcr.model import ActiveAttempt, AttemptId, CandidateId, CommitRecord, ControlState


def new_run(record: CommitRecord, members: Iterable[str] = ()) -> ControlState:
    """First value of a run: v0 is committed, nothing is active, ``members`` are to serve it (P1, P2, P11)."""
    number = record.attempt.number
    return ControlState(
        record.run, 0, record.writer, record.epoch, number, record, members=tuple(sorted(set(members)))
    )


def take_over(state: ControlState, nonce: str) -> ControlState:
    """A new coordinator's claim: prepares and commits of every earlier epoch fail from now on (P1, P10)."""
    return replace(_next(state, nonce), epoch=state.epoch + 1)


def prepare(state: ControlState, candidate: CandidateId, *, epoch: int, nonce: str) -> ControlState:
    """Hand out the next attempt of the transition that follows ``state.record`` (P3, P4, P5).

    The opened mark, and the number that the chain of attempts began with, survive only for the same
    transition and the same candidate.

    Raises:
        Conflict: a coordinator of another epoch owns the run.
    """
    check_epoch(state, epoch)
    attempt = AttemptId(state.number + 1, state.record.version + 1)
    active = ActiveAttempt(attempt, candidate, opened=False, since=attempt.number)
    if state.active is not None and same_transition(state, candidate):
        active = replace(state.active, attempt=attempt)
    return replace(_next(state, nonce), number=attempt.number, active=active)


def same_transition(state: ControlState, candidate: CandidateId) -> bool:
    """Whether the active attempt publishes ``candidate`` onto the record's version (P5)."""
    active = state.active
    if active is None:
        return False
    return active.attempt.version == state.record.version + 1 and active.candidate == candidate


def mark_opened(state: ControlState, attempt: AttemptId, *, nonce: str) -> ControlState:
    """Note durably that receivers may have been written: from now on only overwrites (P6).

    Raises:
        Conflict: ``attempt`` is not the active one.
    """
    active = _require_active(state, attempt)
    return replace(_next(state, nonce), active=replace(active, opened=True))


def commit(state: ControlState, record: CommitRecord) -> ControlState:
    """Joint commit: the record moves and the active attempt ends in one write (R16, P4).

    Raises:
        Conflict: ``record`` is not by the active, opened attempt of this epoch, or does not follow
            ``state.record``.
    """
    active = _require_active(state, record.attempt)
    check_epoch(state, record.epoch)
    if not active.opened:
        raise Conflict(f"attempt {active.attempt} was never marked as opened")
    follows = record.version == state.record.version + 1 and record.parent == state.record.attempt
    if not follows or record.run != state.run or record.catalogue != state.record.catalogue:
        raise Conflict(f"record {record.version} by {record.attempt} does not follow {state.record.version}")
    return replace(_next(state, record.writer), record=record, active=None)


def abandon(state: ControlState, attempt: AttemptId, *, nonce: str) -> ControlState:
    """Give ``attempt`` up together with its candidate; the record stays (P12).

    Raises:
        Conflict: ``attempt`` is not the active one.
    """
    _require_active(state, attempt)
    return replace(_next(state, nonce), active=None)


def renumber(state: ControlState, *, epoch: int, nonce: str) -> ControlState:
    """Hand out a number that nobody has stopped yet; an active attempt goes on under it (P3, P6).

    Raises:
        Conflict: a coordinator of another epoch owns the run.
    """
    check_epoch(state, epoch)
    number, active = state.number + 1, state.active
    if active is not None:
        active = replace(active, attempt=AttemptId(number, active.attempt.version))
    return replace(_next(state, nonce), number=number, active=active)


def roll_back(state: ControlState, *, epoch: int, nonce: str) -> ControlState:
    """Hand out a number that replaces every attempt, and give up what is active; the record stays (P12).

    Raises:
        Conflict: a coordinator of another epoch owns the run.
    """
    return replace(renumber(state, epoch=epoch, nonce=nonce), active=None)


def join(
    state: ControlState, name: str, record: CommitRecord, *, epoch: int, nonce: str, anew: bool = False
) -> ControlState:
    """Let ``name``, which has proven ``record``'s version, serve: commits need it from now on (P11).

    ``anew`` writes also if it is a member, so that a removal that is still under way fails.

    Raises:
        Conflict: a coordinator of another epoch owns the run, or another version is committed.
    """
    check_epoch(state, epoch)
    if state.record != record:
        raise Conflict(f"{name} proved version {record.version}, but {state.record.version} is committed")
    if name in state.members and not anew:
        return state
    return replace(_next(state, nonce), members=tuple(sorted({*state.members, name})))


def leave(state: ControlState, name: str, *, epoch: int, nonce: str) -> ControlState:
    """Commits do without ``name`` from now on. Only for a receiver that serves no more (P11).

    An attempt that is under way fails with its commit, since that expects the value without this write.

    Raises:
        Conflict: a coordinator of another epoch owns the run.
    """
    check_epoch(state, epoch)
    if name not in state.members:
        return state
    return replace(_next(state, nonce), members=tuple(m for m in state.members if m != name))


def latest_attempt(state: ControlState) -> AttemptId:
    """The last attempt that was handed out: no party obeys a later one."""
    if state.active is not None:
        return state.active.attempt
    if state.number == state.record.attempt.number:
        return state.record.attempt
    return AttemptId(state.number, state.record.version + 1)  # abandoned, or a number alone


def check_epoch(state: ControlState, epoch: int) -> None:
    """Raise Conflict if another coordinator has taken the run over."""
    if state.epoch != epoch:
        raise Conflict(f"run {state.run}: epoch {epoch} was replaced by {state.epoch}; stand down")


def _require_active(state: ControlState, attempt: AttemptId) -> ActiveAttempt:
    if state.active is None or state.active.attempt != attempt:
        found = "none" if state.active is None else str(state.active.attempt)
        raise Conflict(f"run {state.run}: attempt {attempt} is not active (active: {found})")
    return state.active


def _next(state: ControlState, nonce: str) -> ControlState:
    return replace(state, revision=state.revision + 1, writer=nonce)
