"""Who must take part in a commit, and who may serve (DESIGN P11): join, leave, evict, grant a lease.

A receiver that is not in ``ControlState.members`` holds no serving lease. It leaves that tuple by its own
wish, after it has shut its gate, or because a coordinator has refused it leases for so long that the last one
has run out. So a commit may do without it.
"""

import logging
import re
from collections.abc import Collection, Iterable, Mapping

from dcr.commit.calls import answered_in, silent_in
from dcr.commit.context import Context
from dcr.commit.effects import Pause, Script
from dcr.commit.register import change, read_any
from dcr.commit.transitions import check_epoch, join, leave
from dcr.config import CommitConfig
from dcr.errors import AttemptFailed, ConfigError, Conflict, OutcomeUnknown, RefitError, StoreError
from dcr.model import AttemptId, CommitRecord, ControlState, LeaseGrant, ReceiverReport

logger = logging.getLogger(__name__)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def check_name(name: str, others: Iterable[str]) -> None:
    """Raise ConfigError unless ``name`` may be a receiver's; ``others`` are those of other parties."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"receiver {name!r}: a name is letters, digits, '-' and '_'")
    if name in others:
        raise ConfigError(
            f"receiver {name!r}: this is the name of another party of the run; choose one of its own"
        )


def check_quorum(members: Collection[str], config: CommitConfig) -> None:
    """Raise AttemptFailed if fewer receivers than ``min_receivers`` are members."""
    if len(members) < config.min_receivers:
        named = f" ({', '.join(sorted(members))})" if members else ""
        raise AttemptFailed(
            f"{len(members)} receivers are members{named}, commit.min_receivers is {config.min_receivers}: "
            "start receivers, which join by themselves, or lower it"
        )


def grant_lease(
    context: Context, state: ControlState, *, receiver: str, incarnation: str, held: AttemptId | None
) -> LeaseGrant:
    """Let ``receiver``, whose storage stands on what ``held`` committed, serve for a while.

    ``state`` was read since it asked, so whatever was granted is noted as later than it was asked for.

    Raises:
        Conflict: another coordinator took over, it is no member or about to be none, another process has its
            name, or another version is committed.
    """
    check_grant(state, context.epoch, receiver, held)
    context.book.grant(receiver, incarnation, context.clock())
    return LeaseGrant(context.config.lease_s)


def check_grant(state: ControlState, epoch: int, receiver: str, held: AttemptId | None) -> None:
    """Whether ``receiver`` may serve by ``state``; ``held`` None: it holds no version at all.

    One that is in a transition, with a shut gate, keeps its lease: it stands on what is committed.

    Raises:
        Conflict: another coordinator took over, it is no member, or another version is committed.
    """
    check_epoch(state, epoch)
    if receiver not in state.members:
        raise Conflict(f"{receiver} is not a member of this run; ask to be admitted")
    if held != state.record.attempt:
        holds = "no version" if held is None else f"attempt {held}"
        raise Conflict(f"{receiver} holds {holds}, but {state.record.attempt} is committed")


def to_evict(
    members: Collection[str], failing: Mapping[str, float], now: float, config: CommitConfig
) -> list[str]:
    """Members that have been ``failing``, by name since when, for too long; longest first.

    As many as the minimum of receivers allows.
    """
    if not config.evicts:
        return []
    late = [name for name in members if name in failing and now - failing[name] >= config.evict_after_s]
    late.sort(key=lambda name: (failing[name], name))
    return late[: max(0, len(members) - config.min_receivers)]


def join_run(context: Context, receiver: str, record: CommitRecord, incarnation: str) -> Script[None]:
    """Make ``receiver``, which has proven ``record``'s version as ``incarnation``, a member. Idempotent.

    Whatever removes an earlier process of its name, by ``leave_run`` or ``evict``, is over before it is
    granted anything: it was written before, or is refused.

    Raises:
        Conflict: another version is committed, or another coordinator took over.
    """
    book = context.book
    book.meet(receiver, incarnation)  # first: then no earlier process gets past ``leave_run``'s check
    anew = book.is_refused(receiver)

    def update(state: ControlState) -> ControlState:
        return join(state, receiver, record, epoch=context.epoch, nonce=context.nonce(), anew=anew)

    yield from change(update)
    book.admit(receiver, incarnation)


def leave_run(context: Context, receiver: str, incarnation: str) -> Script[ControlState]:
    """Do without ``receiver``, whose process ``incarnation`` will never serve again.

    An attempt that is under way fails with its commit, and is repeated.

    Raises:
        Conflict: another coordinator took over; or its name is another process's by now, or is not known to
            be its own, so that nobody knows whether it serves: then it is evicted in time.
    """

    def update(state: ControlState) -> ControlState:
        context.book.dismiss(receiver, incarnation)  # at each try: its successor may have joined meanwhile
        return leave(state, receiver, epoch=context.epoch, nonce=context.nonce())

    return (yield from change(update))


def remove(context: Context, receiver: str) -> Script[ControlState]:
    """Do without ``receiver``, which holds no lease and is granted none."""
    context.book.refuse(receiver)
    return (
        yield from change(lambda state: leave(state, receiver, epoch=context.epoch, nonce=context.nonce()))
    )


def look_after(context: Context, err: RefitError) -> Script[bool]:
    """An attempt failed with ``err``: evict the members that have not answered for too long.

    Returns whether this policy ends the failure in its own time, which then is no reason to give up. A
    member that could not be evicted is granted nothing, and evicted after the next attempt that it fails.

    Raises:
        Conflict: another coordinator took over.
    """
    try:
        state = yield from read_any()
        failing = context.book.note(answered_in(err), silent_in(err))
        for name in to_evict(state.members, failing, context.clock(), context.config):
            yield from evict(context, name)
    except (StoreError, OutcomeUnknown) as unable:
        logger.warning("nobody could be evicted: %s", unable)
        return False
    spare = context.config.evicts and len(state.members) > context.config.min_receivers
    return spare and any(name in state.members for name in silent_in(err))


def meet(context: Context, answers: Mapping[str, object]) -> None:
    """Note which process answered a fence under each receiver's name: no earlier one may serve any more."""
    for name, answer in answers.items():
        if isinstance(answer, ReceiverReport):
            context.book.meet(name, answer.incarnation)


def evict(context: Context, receiver: str) -> Script[None]:
    """Wait until no lease of ``receiver`` can be valid any more, then do without it.

    Its last request was sent before the time noted, so its lease has run out ``lease_s`` later by its own
    clock, and ``lease_s + lease_skew_s`` later by ours.

    Raises:
        Conflict: another coordinator took over.
    """
    config = context.config
    over = context.book.refuse(receiver) + config.lease_s + config.lease_skew_s
    while (left_s := over - context.clock()) > 0:
        yield Pause(left_s)
    yield from remove(context, receiver)
    logger.warning("%s is evicted: it left calls unanswered; it may be admitted again", receiver)
