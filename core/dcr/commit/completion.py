"""After the record names tau: fold in, settle. Neither may be given up (DESIGN P9, R16)."""

import logging
from collections.abc import Sequence
from typing import Any

from dcr.commit.calls import describe, failures, marked, raise_fatal, to_all, try_all
from dcr.commit.context import Context
from dcr.commit.effects import Pause, Script
from dcr.errors import IntegrityError, Unreachable
from dcr.model import CommitRecord, ReceiverReport, ReceiverState

logger = logging.getLogger(__name__)
SETTLE_TRIES = 3
"""A receiver that misses its settling is settled by its next fence, so it is not waited for."""


def complete(context: Context, record: CommitRecord, members: Sequence[str]) -> Script[dict[str, float]]:
    """Bring every tracker to ``record``, and let every member serve it. Idempotent.

    In asynchronous mode members serve first: the record decides, and rollouts need not wait for the trainer's
    trackers. Returns how many seconds each gate was shut, by name, as far as members told.
    """
    if context.config.mode == "async":
        pauses = yield from settle(context, record, members)
        yield from fold_in(context, context.owners, record)
        return pauses
    yield from fold_in(context, context.owners, record)
    return (yield from settle(context, record, members))


def fold_in(context: Context, owners: Sequence[str], record: CommitRecord) -> Script[None]:
    """Ask until each of ``owners`` holds ``record`` as its baseline, durably (P9).

    Raises:
        Unreachable: some owner stayed away; resuming the run asks it again.
        IntegrityError: an owner cannot reach the record's bits.
    """
    yield from marked(["fold_in"], record.attempt, _fold_in(context, owners, record))


def _fold_in(context: Context, owners: Sequence[str], record: CommitRecord) -> Script[None]:
    pending, config = tuple(owners), context.config
    failed: dict[str, Any] = {}
    for _ in range(config.max_attempts):
        calls = to_all(pending, "fold_in", attempt=record.attempt, record=record)
        answers = yield from try_all(calls, config.fold_in_deadline_s)
        failed = failures(answers)
        raise_fatal(failed)
        _check_folded({t: a for t, a in answers.items() if t not in failed}, record)
        pending = tuple(failed)
        if not pending:
            return
        yield Pause(config.retry_pause_s)
    raise Unreachable(
        f"version {record.version} is committed, but its fold-in is missing at {describe(failed)}; "
        "restart these and resume the run"
    )


def _check_folded(reports: dict[str, Any], record: CommitRecord) -> None:
    """A later version is fine: while this coordinator was slow, another one has gone on."""
    for target, report in reports.items():
        if report.baseline_version < record.version:
            raise IntegrityError(
                f"{target}: trackers are at {report.baseline_version} after fold-in of {record.version}"
            )


def settle(context: Context, record: CommitRecord, members: Sequence[str]) -> Script[dict[str, float]]:
    """Tell every member that ``record`` is committed: complete(tau) becomes clean, its gate opens.

    Returns the seconds of its pause for each that told them.
    """
    return (yield from marked(["settle"], record.attempt, _settle(context, record, members)))


def _settle(context: Context, record: CommitRecord, members: Sequence[str]) -> Script[dict[str, float]]:
    pending, config = tuple(members), context.config
    pauses: dict[str, float] = {}
    for _ in range(SETTLE_TRIES):
        answers = yield from try_all(to_all(pending, "settle", record=record), config.fence_deadline_s)
        raise_fatal(failures(answers))
        pending = tuple(target for target, answer in answers.items() if not _serves(answer, record))
        pauses |= {
            answer.receiver: answer.pause_s
            for answer in answers.values()
            if isinstance(answer, ReceiverReport) and answer.pause_s is not None
        }
        if not pending:
            return pauses
        yield Pause(config.retry_pause_s)
    logger.warning("version %d: %s not settled; next fence does it", record.version, ", ".join(pending))
    return pauses


def _serves(answer: object, record: CommitRecord) -> bool:
    settled = isinstance(answer, ReceiverReport) and answer.state is ReceiverState.CLEAN
    return settled and isinstance(answer, ReceiverReport) and answer.version == record.version
