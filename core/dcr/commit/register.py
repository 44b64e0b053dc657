"""Scripts that read and change the control plane (DESIGN P1, P4).

Only the commit itself has an outcome that matters when its answer is lost; every other write
here may be repeated, because a repeated one is either refused or does no harm.
"""

from collections.abc import Callable

from dcr.commit.context import Context
from dcr.commit.effects import CompareAndSet, Pause, ReadState, Script
from dcr.commit.transitions import abandon, check_epoch, mark_opened, prepare, take_over
from dcr.errors import AttemptFailed, Conflict, OutcomeUnknown, RefitError, StoreError
from dcr.model import ActiveAttempt, AttemptId, CandidateId, CommitRecord, ControlState

Update = Callable[[ControlState], ControlState]
WRITE_TRIES = 20
"""How often a write whose answer was lost, or that met another's, is made again."""


def read_state(context: Context) -> Script[ControlState]:
    """Current value; raises Conflict if another coordinator took over, else StoreError if unreadable."""
    state = yield from read_any()
    check_epoch(state, context.epoch)
    return state


def read_any() -> Script[ControlState]:
    """Current value whoever coordinates; raises MissingObject or StoreError."""
    state: ControlState | RefitError = yield ReadState()
    if isinstance(state, RefitError):
        raise state
    return state


def change(update: Update) -> Script[ControlState]:
    """Apply ``update`` to the current value by compare-and-set and return what is now stored.

    ``update`` returns its argument when nothing is left to do, and raises when its preconditions
    no longer hold. After a lost answer the value is read again: ``update`` then sees whether it
    took effect, and a copy that is still in flight can only lose against the next write.

    Raises:
        OutcomeUnknown: no try got an answer.
        StoreError: the control plane failed.
    """
    last: RefitError = OutcomeUnknown("the control plane was never asked")
    for _ in range(WRITE_TRIES):
        state = yield from read_any()
        wanted = update(state)
        if wanted == state:
            return state
        answer: RefitError | None = yield CompareAndSet(state, wanted)
        if answer is None:
            return wanted
        if not isinstance(answer, Conflict | OutcomeUnknown):
            raise answer
        last = answer
    raise last


def prepare_attempt(
    context: Context, candidate: CandidateId, parent_version: int
) -> Script[tuple[ControlState, ActiveAttempt]]:
    """Durably start the next attempt; raises Conflict unless v is committed and the run is still ours."""

    def update(state: ControlState) -> ControlState:
        if state.record.version != parent_version:
            raise Conflict(f"version {state.record.version} is committed, not {parent_version}")
        return prepare(state, candidate, epoch=context.epoch, nonce=context.nonce())

    state = yield from change(update)
    if state.active is None:
        raise AssertionError("prepare leaves an active attempt")
    return state, state.active


def open_transition(context: Context, attempt: AttemptId, required: tuple[str, ...]) -> Script[ControlState]:
    """Make sure that the opened mark is durable (P6), in a value with exactly the ``required`` members.

    Raises:
        Conflict: ``attempt`` was replaced.
        AttemptFailed: somebody joined or left since the attempt was prepared (P11).
    """

    def update(state: ControlState) -> ControlState:
        check_epoch(state, context.epoch)
        check_required(state, required)
        marked = mark_opened(state, attempt, nonce=context.nonce())
        return state if state.active is not None and state.active.opened else marked

    return (yield from change(update))


def check_required(state: ControlState, required: tuple[str, ...]) -> None:
    """Raise AttemptFailed if the members are no longer those that the attempt was prepared with (P11)."""
    if state.members != required:
        changed = sorted(set(state.members) ^ set(required))
        raise AttemptFailed(f"{', '.join(changed)} joined or left since the attempt was prepared")


def abandon_attempt(context: Context, attempt: AttemptId) -> Script[None]:
    """Clear ``attempt`` and its candidate; raises Conflict if it was replaced."""
    yield from change(lambda state: abandon(state, attempt, nonce=context.nonce()))


def abandon_transition(context: Context, version: int) -> Script[None]:
    """Clear whatever attempt follows the committed ``version``; raises Conflict unless that is committed."""

    def update(state: ControlState) -> ControlState:
        check_epoch(state, context.epoch)
        if state.record.version != version:
            raise Conflict(f"version {state.record.version} is committed, not {version}")
        return state if state.active is None else abandon(state, state.active.attempt, nonce=context.nonce())

    yield from change(update)


def claim(nonce: Callable[[], str]) -> Script[ControlState]:
    """Take the run over with the next epoch (P1); a commit of the old epoch has landed or never will."""
    return (yield from change(lambda state: take_over(state, nonce())))


def commit_record(context: Context, prepared: ControlState, committed: ControlState) -> Script[bool]:
    """Compare-and-set the record; whether it now names this attempt, known for certain.

    Raises:
        Conflict: another coordinator took the run over, so the outcome is for it to find.
        OutcomeUnknown: the control plane stayed away while the outcome was looked up.
    """
    answer: RefitError | None = yield CompareAndSet(prepared, committed)
    if answer is None:
        return True
    return (yield from resolve_commit(context, committed.record, prepared))


def resolve_commit(context: Context, record: CommitRecord, prepared: ControlState) -> Script[bool]:
    """Find out whether the commit of ``record`` took effect (P4).

    "Not ours" proves nothing while the write may still be in flight: a new prepare of the same
    candidate makes it fail first.
    """
    for _ in range(WRITE_TRIES):
        state: ControlState | RefitError = yield ReadState()
        if isinstance(state, StoreError):
            yield Pause(context.config.retry_pause_s)
            continue
        if isinstance(state, RefitError):
            raise state
        if state.record.attempt == record.attempt:
            return True
        check_epoch(state, context.epoch)
        if state != prepared:
            return False
        fence = prepare(state, _candidate(prepared), epoch=context.epoch, nonce=context.nonce())
        if (yield CompareAndSet(state, fence)) is None:
            return False
    raise OutcomeUnknown(f"commit of version {record.version} by {record.attempt}: no answer")


def _candidate(state: ControlState) -> CandidateId:
    if state.active is None:
        raise AssertionError("a commit has an active attempt")
    return state.active.candidate
