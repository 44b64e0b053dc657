"""When no attempt succeeds (DESIGN P12): abandon the transition; serve v again where it was overwritten."""

from dcr.commit.calls import failures, marked, to_all, try_all
from dcr.commit.context import Context, Request, Rollback
from dcr.commit.effects import Answer, Script
from dcr.commit.membership import meet
from dcr.commit.register import abandon_transition, change
from dcr.commit.rules import needs_restore
from dcr.commit.transitions import latest_attempt, roll_back
from dcr.errors import AttemptFailed, OutcomeUnknown, RefitError, StoreError, TransitionAbandoned
from dcr.model import ControlState, ReceiverReport


def give_up(context: Context, request: Request, last: RefitError) -> Script[AttemptFailed]:
    """Clear the active attempt together with its candidate; returns the error to raise.

    The record stays at v. Whoever stands on v and on parts of the candidate keeps its gate shut: the next
    transition restores it, and so does ``rollback``.
    """
    version, num = request.parent_version, context.config.max_attempts + 1
    failed = f"step {request.step}: {num} attempts failed, the last of them a dense refit"
    inner = abandon_transition(context, version)
    try:
        yield from marked(["abandon"], f"step {request.step}", inner)
    except (StoreError, OutcomeUnknown) as err:
        return AttemptFailed(f"{failed}, and the transition could not be abandoned: {err}; last: {last}")
    return TransitionAbandoned(
        f"{failed}; the transition is abandoned: version {version} stays committed and gates that are shut "
        f"stay shut; repair what failed and train on, or serve version {version} again with: dcr rollback; "
        f"last: {last}"
    )


def rollback(context: Context) -> Script[Rollback]:
    """Have every member serve the committed version again: fenced, restored densely, proven. Idempotent.

    Nothing of any earlier attempt can take effect afterwards. A member that fails does not keep the
    others from serving.

    Raises:
        Conflict: another coordinator took over.
    """
    state = yield from change(lambda old: roll_back(old, epoch=context.epoch, nonce=context.nonce()))
    return (yield from marked(["rollback"], latest_attempt(state), _roll_back(context, state)))


def _roll_back(context: Context, state: ControlState) -> Script[Rollback]:
    record, config, failed = state.record, context.config, dict[str, str]()
    named = {"attempt": latest_attempt(state), "record": record}

    def ask(method: str, deadline_s: float, **params: object) -> Script[dict[str, Answer]]:
        targets = [name for name in state.members if name not in failed]
        answers = yield from try_all(to_all(targets, method, **params), deadline_s)
        for name, err in failures(answers).items():
            failed[name] = f"{method}: {type(err).__name__}: {err}"
        return answers

    meet(context, (yield from ask("fence", config.fence_deadline_s, **named)))
    restored = yield from ask("restore", config.restore_deadline_s, **named)
    for name, report in restored.items():
        if isinstance(report, ReceiverReport) and needs_restore(report, record.version):
            failed[name] = f"restore: it is {report.state}({report.version}) afterwards"
    yield from ask("settle", config.fence_deadline_s, record=record)
    return Rollback(record, tuple(name for name in state.members if name not in failed), failed)
