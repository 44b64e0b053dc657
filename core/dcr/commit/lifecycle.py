"""How a run begins, goes on under a new coordinator, and takes a restarted receiver in (P1, P2, P10, P11)."""

import logging
from dataclasses import replace

from dcr.commit.book import MembershipBook
from dcr.commit.calls import ask, to_all, try_all
from dcr.commit.completion import fold_in, settle
from dcr.commit.context import Context
from dcr.commit.coordinator import store_object
from dcr.commit.effects import CreateState, Script
from dcr.commit.membership import join_run, meet
from dcr.commit.register import WRITE_TRIES, change, claim, prepare_attempt, read_any, read_state
from dcr.commit.rules import join_audit, join_manifest, needs_restore
from dcr.commit.transitions import latest_attempt, new_run, renumber
from dcr.errors import (
    AttemptFailed,
    ConfigError,
    Conflict,
    MissingObject,
    OutcomeUnknown,
    RefitError,
)
from dcr.model import GENESIS, CommitRecord, ControlState, ReceiverReport, RunId, to_json

logger = logging.getLogger(__name__)
FIRST_EPOCH = 1


def create_run(context: Context, step: int) -> Script[CommitRecord]:
    """Publish the trainer's baseline as v0 and create the run (P2). ``context.epoch`` is FIRST_EPOCH.

    Raises:
        ConfigError: the run exists.
        AttemptFailed: an owner did not publish its part of the anchor.
        OutcomeUnknown: created or not; resume the run to find out.
    """
    yield from refuse_existing(context.run)
    calls = to_all(context.owners, "anchor")
    closes = yield from ask(context, calls, context.config.construct_deadline_s)
    parts = [closes[target] for target in context.owners]
    manifest = join_manifest(context, GENESIS, None, parts, overwrite_only=True)
    audit = join_audit(context.catalogue, parts)
    catalogue = yield from store_object("catalogue", to_json(context.catalogue))
    digest = yield from store_object("manifest", to_json(manifest))
    record = CommitRecord(
        context.run, 0, GENESIS, context.epoch, context.nonce(), None, step, catalogue, digest,
        (yield from store_object("audit", to_json(audit))),
    )  # fmt: skip
    yield from create_state(context, new_run(record, context.receivers))
    yield from fold_in(context, context.owners, record)
    return record


def refuse_existing(run: RunId) -> Script[None]:
    """Raise ConfigError if the run exists: taking it over must be asked for (P1)."""
    try:
        state = yield from read_any()
    except MissingObject:
        return
    raise already_exists(run, state.record.version)


def already_exists(run: RunId, version: int | None = None) -> ConfigError:
    """The one message for a second run in the same place."""
    found = "" if version is None else f" at version {version}"
    return ConfigError(
        f"run {run} exists already{found}; continue it with resume=true or choose another run_dir"
    )


def create_state(context: Context, state: ControlState) -> Script[None]:
    """Create-if-absent whose lost answer is resolved by looking whose value is there."""
    for _ in range(WRITE_TRIES):
        answer: RefitError | None = yield CreateState(state)
        if answer is None:
            return
        if not isinstance(answer, Conflict | OutcomeUnknown):
            raise answer
        try:
            found = yield from read_any()
        except MissingObject:
            continue
        if found.record.writer == state.writer:
            return
        raise already_exists(context.run)
    raise OutcomeUnknown(f"run {context.run} may or may not have been created; start again with resume=true")


def take_over(context: Context) -> Script[tuple[Context, ControlState]]:
    """Make the run ours (its epoch rises): from now on leases are granted by us alone.

    Raises:
        ConfigError: the catalogue is not the run's, which is left as it was.
        MissingObject: there is no such run.
        Conflict, OutcomeUnknown, StoreError: it may have become ours all the same.
    """
    check_catalogue(context, (yield from read_any()).record)  # no commit changes it
    state = yield from claim(context.nonce)
    context = replace(context, epoch=state.epoch, book=MembershipBook())
    context.book.take_over(context.clock())
    return context, state


def go_on(context: Context, state: ControlState) -> Script[CommitRecord]:
    """Finish what the record in ``state``, which was just taken over, still lacks.

    Every owner is told the record, and folds it in where it is missing: a rank that restarted waits for
    that. An attempt in flight is replaced under its own candidate, so that its opened mark stays, and
    every party within reach is fenced; the trainer's next request continues from there. Should this
    fail, requests may be carried out all the same: a transition fences, and folds in what trackers miss.

    Raises:
        Unreachable: an owner stayed away; start again when it is back.
    """
    record = state.record
    yield from fold_in(context, context.owners, record)
    if state.active is not None:
        prepared, active = yield from prepare_attempt(context, state.active.candidate, record.version)
        targets = (*context.owners, *prepared.members)
        fences = to_all(targets, "fence", attempt=active.attempt, record=record)
        meet(context, (yield from try_all(fences, context.config.fence_deadline_s)))
    else:
        yield from settle(context, record, state.members)
    return record


def check_catalogue(context: Context, record: CommitRecord) -> None:
    """A changed name, shape or dtype needs a new run (P15); raises ConfigError."""
    if context.catalogue.digest() != record.catalogue:
        raise ConfigError(
            f"run {context.run}: the model's names, shapes or dtypes are not those it was created with; "
            "start a new run"
        )


def admit(context: Context, receiver: str) -> Script[ReceiverReport]:
    """Let a receiver that is new, restarted or evicted restore the committed version, prove it, and serve.

    It is a member before its gate opens (P11). Idempotent.

    Raises:
        Conflict: another coordinator took over, or has fenced it since; ask that one. Or another version
            was committed meanwhile; ask again.
        AttemptFailed: it could not restore or prove the version.
    """
    state = yield from read_state(context)
    record, config = state.record, context.config
    try:
        report = yield from one(receiver, "settle", config.fence_deadline_s, record=record)
    except Conflict as err:
        logger.info("%s does not hold version %d and is restored: %s", receiver, record.version, err)
    else:
        yield from join_run(context, receiver, record, report.incarnation)
        return report
    # what was stopped is over for good, also for a restore: it gets a number of its own
    state = yield from change(lambda old: renumber(old, epoch=context.epoch, nonce=context.nonce()))
    record = state.record
    named = {"attempt": latest_attempt(state), "record": record}
    yield from one(receiver, "fence", config.fence_deadline_s, **named)
    report = yield from one(receiver, "restore", config.restore_deadline_s, **named)
    if needs_restore(report, record.version):
        raise AttemptFailed(f"{receiver} is {report.state}({report.version}) after restore")
    yield from join_run(context, receiver, record, report.incarnation)
    return (yield from one(receiver, "settle", config.fence_deadline_s, record=record))


def one(receiver: str, method: str, deadline_s: float, **params: object) -> Script[ReceiverReport]:
    """One call to one receiver; its error is raised as it is, so that Conflict stays Conflict."""
    answers = yield from try_all(to_all([receiver], method, **params), deadline_s)
    answer = answers[receiver]
    if isinstance(answer, RefitError):
        raise answer
    if not isinstance(answer, ReceiverReport):
        raise AttemptFailed(f"{receiver} answered {type(answer).__name__} to {method}")
    return answer
