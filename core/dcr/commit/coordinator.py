"""One transition v -> v+1 (paper Algorithm B.2): attempts until one commits.

A script without input or output of its own: it yields effects and is sent their answers, so the
simulation runs this very code. It keeps nothing between requests; asked again after a crash, it
finds in the control state whether its candidate was committed.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from dcr.commit.calls import ask, marked, silent_in, to_all, try_all
from dcr.commit.completion import complete, fold_in
from dcr.commit.context import Context, Outcome, Request
from dcr.commit.effects import Pause, Script, StoreObject
from dcr.commit.giving_up import give_up
from dcr.commit.membership import check_quorum, look_after, meet
from dcr.commit.register import (
    abandon_attempt,
    commit_record,
    open_transition,
    prepare_attempt,
    read_state,
)
from dcr.commit.rules import (
    candidate_of,
    check_acks,
    check_not_ahead,
    check_owners,
    check_parent,
    check_requester,
    combine_classes,
    committed_already,
    join_audit,
    join_manifest,
    lagging,
    may_name_earlier,
    needs_restore,
    not_presented,
    overwrites_only,
    warn_if_unchanged,
)
from dcr.commit.staged import Manner, await_staged, manner, open_staged, stage
from dcr.commit.transitions import commit
from dcr.errors import AttemptFailed, RefitError, StoreError, Unreachable, UnsupportedPath
from dcr.model import (
    ActiveAttempt,
    ApplyAck,
    AttemptId,
    Classification,
    CommitRecord,
    ControlState,
    Manifest,
    OwnerClose,
    OwnerReport,
    ReceiverReport,
    to_json,
)

logger = logging.getLogger(__name__)
LOOK_AGAIN_S = 0.02
"""Ranks present their shares of a candidate within moments of one another."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The record names our attempt, for certain. ``members`` are to serve it. ``found``: it did before."""

    record: CommitRecord
    members: tuple[str, ...]
    acks: tuple[ApplyAck, ...] = ()
    found: bool = False


@dataclass(frozen=True, slots=True)
class Lists:
    """The closed manifest of an attempt, and the digests of it and of the audit table, both stored."""

    manifest: Manifest
    digest: str
    audit: str


def transition(context: Context, request: Request) -> Script[Outcome]:
    """Commit the candidate of ``request.step`` and bring every party to it.

    A receiver that is silent for too long is evicted between two attempts; until then its failures do
    not count. The last attempt, after ``max_attempts`` that count, is a dense refit (P12).

    Raises:
        TransitionAbandoned: no attempt succeeded; v stays committed and gates that closed stay closed.
        Conflict: another coordinator took over, or the caller builds on another version.
        Unreachable: committed, but an owner did not fold in; resume the run.
        UnsupportedPath, IntegrityError, ConfigError: as a party raised them.
    """
    last: RefitError = AttemptFailed("no attempt was made")
    num_attempts, num_failed, most = 0, 0, context.config.max_attempts
    while num_failed <= most:
        num_attempts += 1
        try:
            committed = yield from attempt_once(context, request, manner(context.config, num_failed))
        except (AttemptFailed, StoreError, Unreachable) as err:
            logger.warning("step %d, try %d failed: %s", request.step, num_attempts, err)
            last = err
            num_failed += not (yield from look_after(context, err))
            yield Pause(context.config.retry_pause_s)
            continue
        context.book.note(committed.members, {})
        pauses = yield from complete(context, committed.record, committed.members)
        return Outcome(committed.record, committed.acks, 0 if committed.found else num_attempts, pauses)
    raise (yield from give_up(context, request, last))


def attempt_once(context: Context, request: Request, how: Manner) -> Script[Committed]:
    """Collect, read, prepare, and carry one attempt to its commit; on failure stop it everywhere."""
    reports = yield from collect(context, request)
    state = yield from read_state(context)
    if committed_already(request, state.record, reports):
        return Committed(state.record, state.members, found=True)
    check_parent(request, state.record)
    check_not_ahead(reports, state.record)
    behind = lagging(context.owners, reports, state.record)
    if behind:
        yield from fold_in(context, behind, state.record)
    check_quorum(state.members, context.config)
    candidate = candidate_of(request.step, reports)
    inner = prepare_attempt(context, candidate, request.parent_version)
    prepared, active = yield from marked(["prepare"], f"step {request.step}", inner)
    try:
        return (yield from carry_out(context, prepared, active, how))
    except UnsupportedPath:
        yield from stop_everywhere(context, prepared)
        yield from abandon_attempt(context, active.attempt)
        raise
    except RefitError as err:
        yield from stop_everywhere(context, prepared, but=silent_in(err))
        raise


def collect(context: Context, request: Request) -> Script[list[OwnerReport]]:
    """What each owner holds once all of them present the candidate, in rank order.

    Raises:
        Conflict: the trainer restarted; it asks anew once it has resumed.
        Unreachable: an owner presents no candidate of the step in time.
    """
    deadline_s = context.config.collect_deadline_s
    waiting: list[str] = []
    for _ in range(max(1, int(deadline_s / LOOK_AGAIN_S))):
        answers = yield from ask(context, to_all(context.owners, "collect", step=None), deadline_s)
        reports = [answers[target] for target in context.owners]
        check_requester(request, reports)
        waiting = not_presented(request, context.owners, reports)
        if not waiting:
            return reports
        yield Pause(LOOK_AGAIN_S)
    raise Unreachable(f"step {request.step} was not presented within {deadline_s} s by {', '.join(waiting)}")


def carry_out(
    context: Context, prepared: ControlState, active: ActiveAttempt, how: Manner
) -> Script[Committed]:
    """Everything between prepare and the known outcome of the commit."""
    record, attempt, members = prepared.record, active.attempt, prepared.members
    check_quorum(members, context.config)
    owners, receivers = yield from fence(context, prepared, attempt)
    check_owners(active, record, owners)
    receivers = yield from restore(context, active, record, receivers, dense=how.dense)
    classes = combine_classes(context.catalogue, receivers)
    if how.staged and may_name_earlier(active):  # once gates are shut nobody is left to serve meanwhile
        state, lists = yield from staged(context, prepared, active, classes)
    else:
        state, lists = yield from streamed(context, prepared, active, classes, dense=how.dense)
    acks = yield from finish(context, lists.manifest, lists.digest)
    new = CommitRecord(
        context.run, record.version + 1, attempt, context.epoch, context.nonce(), record.attempt,
        active.candidate.step, context.catalogue.digest(), lists.digest, lists.audit,
    )  # fmt: skip
    inner_commit = commit_record(context, state, commit(state, new))
    if not (yield from marked(["commit"], attempt, inner_commit)):
        raise AttemptFailed(f"attempt {attempt} was replaced before its commit")
    return Committed(new, members, acks)


def streamed(
    context: Context,
    prepared: ControlState,
    active: ActiveAttempt,
    classes: Classification,
    *,
    dense: bool,
) -> Script[tuple[ControlState, Lists]]:
    """Synchronous mode: gates shut first, then payloads are applied as they arrive."""
    state = yield from open_marked(context, prepared, active)
    closes = yield from stream(context, prepared, active, classes, dense=dense)
    overwrite_only = dense or overwrites_only(active)
    return state, (yield from publish_lists(context, prepared, active, closes, overwrite_only=overwrite_only))


def staged(
    context: Context, prepared: ControlState, active: ActiveAttempt, classes: Classification
) -> Script[tuple[ControlState, Lists]]:
    """Asynchronous mode: gates shut when every receiver holds everything; the mark comes before that (P6)."""
    closes = yield from stage(context, prepared, active, classes)
    lists = yield from publish_lists(context, prepared, active, closes, overwrite_only=False)
    yield from await_staged(context, lists.manifest, lists.digest)
    state = yield from open_marked(context, prepared, active)
    yield from open_staged(context, prepared, lists.manifest, lists.digest)
    return state, lists


def open_marked(context: Context, prepared: ControlState, active: ActiveAttempt) -> Script[ControlState]:
    """Set the opened mark durably: the value that the commit will expect."""
    inner = open_transition(context, active.attempt, prepared.members)
    return (yield from marked(["mark_opened"], active.attempt, inner))


def fence(
    context: Context, prepared: ControlState, attempt: AttemptId
) -> Script[tuple[list[OwnerReport], dict[str, ReceiverReport]]]:
    """Make every party obey ``attempt``; afterwards no earlier write can take effect anywhere (P6)."""
    targets = (*context.owners, *prepared.members)
    calls = to_all(targets, "fence", attempt=attempt, record=prepared.record)
    answers = yield from ask(context, calls, context.config.fence_deadline_s)
    meet(context, answers)
    return [answers[t] for t in context.owners], {t: answers[t] for t in prepared.members}


def restore(
    context: Context,
    active: ActiveAttempt,
    record: CommitRecord,
    reports: dict[str, ReceiverReport],
    *,
    dense: bool,
) -> Script[dict[str, ReceiverReport]]:
    """Bring each receiver that cannot take the attempt back to v, proven (P5, P8, P11).

    A ``dense`` attempt starts from a proven v everywhere.
    """
    usable = None if dense else active
    targets = [t for t, report in reports.items() if needs_restore(report, record.version, usable)]
    if not targets:
        return reports
    calls = to_all(targets, "restore", attempt=active.attempt, record=record)
    inner = ask(context, calls, context.config.restore_deadline_s)
    restored = yield from marked(["restore"], active.attempt, inner)
    for target, report in restored.items():
        if needs_restore(report, record.version):
            raise AttemptFailed(f"{target} is {report.state}({report.version}) after restore")
    return reports | restored


def stream(
    context: Context,
    prepared: ControlState,
    active: ActiveAttempt,
    classes: Classification,
    *,
    dense: bool,
) -> Script[list[OwnerClose]]:
    """Open the receivers and construct on the owners at the same time; the closed lists by rank."""
    attempt, record = active.attempt, prepared.record
    opens = to_all(prepared.members, "open_apply", attempt=attempt, record=record)
    constructs = to_all(
        context.owners, "construct", attempt=attempt, record=record,
        overwrite_only=dense or overwrites_only(active), classification=classes, dense=dense,
    )  # fmt: skip
    inner = ask(context, (*opens, *constructs), context.config.construct_deadline_s)
    answers = yield from marked(["open_apply", "construct"], active.attempt, inner)
    return [answers[target] for target in context.owners]


def publish_lists(
    context: Context,
    prepared: ControlState,
    active: ActiveAttempt,
    closes: list[OwnerClose],
    *,
    overwrite_only: bool,
) -> Script[Lists]:
    """Store manifest and audit table as immutable objects (P7)."""
    manifest = join_manifest(
        context, active.attempt, prepared.record, closes,
        overwrite_only=overwrite_only, required=prepared.members,
    )  # fmt: skip
    warn_if_unchanged(manifest)
    digest = yield from store_object("manifest", to_json(manifest))
    audit = yield from store_object("audit", to_json(join_audit(context.catalogue, closes)))
    return Lists(manifest, digest, audit)


def store_object(kind: str, data: bytes) -> Script[str]:
    """Put an immutable object; raises StoreError."""
    answer: str | RefitError = yield StoreObject(kind, data)
    if isinstance(answer, RefitError):
        raise answer
    return answer


def finish(context: Context, manifest: Manifest, digest: str) -> Script[tuple[ApplyAck, ...]]:
    """Wait until every required receiver applied, synchronized and checked exactly ``manifest`` (R16)."""
    attempt = manifest.attempt
    calls = to_all(manifest.required, "finish", attempt=attempt, manifest=digest)
    inner = ask(context, calls, context.config.finish_deadline_s)
    acks: dict[str, Any] = yield from marked(["finish"], attempt, inner)
    check_acks(acks, manifest, digest)
    return tuple(acks[target] for target in manifest.required)


def stop_everywhere(context: Context, prepared: ControlState, but: Collection[str] = ()) -> Script[None]:
    """Best effort: whoever does not answer is stopped by the next fence, which is waited for.

    Parties in ``but`` are known not to answer.
    """
    if prepared.active is None:
        raise AssertionError("prepare leaves an active attempt")
    targets = [name for name in (*context.owners, *prepared.members) if name not in but]
    calls = to_all(targets, "stop_and_wait", attempt=prepared.active.attempt)
    yield from try_all(calls, context.config.fence_deadline_s)
