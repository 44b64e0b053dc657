"""Seeded bugs: each replaces functions of the real code, and breaks the rule that its docstring names.

Where the code defends twice, a bug replaces both functions: otherwise it would be harmless.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dcr.commit import completion, coordinator, membership, register, transitions
from dcr.commit.book import MembershipBook
from dcr.commit.calls import to_all, try_all
from dcr.commit.context import Context
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.effects import CompareAndSet, Pause, ReadState, Script, StoreObject
from dcr.commit.rules import join_audit
from dcr.errors import Conflict, Unreachable
from dcr.model import (
    ActiveAttempt,
    ApplyAck,
    CandidateId,
    CommitRecord,
    ControlState,
    Manifest,
    PayloadRef,
    ReceiverState,
    digest_hex,
    from_json,
    to_json,
)
from dcr.receiver import fences, rules, staging
from dcr.receiver.gate import ServingGate
from dcr.receiver.lease import Lease
from dcr.receiver.proof import Prover
from dcr.receiver.session import Session
from dcr.source.baseline import Baseline
from dcr.source.tracker_index import TrackerIndex
from tests.simulation.clocks import LEASE_S
from tests.simulation.parties import CATALOGUE
from tests.simulation.suspended import TurnLock

Patch = tuple[object, str, Any]
BUGS: dict[str, Sequence[Patch]] = {}
RARE: dict[str, list[Patch]] = {}
"""Bugs that chance meets too seldom: ``test_lease_scenarios.py`` finds each of them in a straight line."""
AMONG: dict[str, Sequence[str]] = {}
"""Disturbances in which a bug is looked for, where all of them together would reach it too seldom."""
MESSAGES = ("lose_call", "delay_call", "repeat_call", "crash_node", "fail_again_and_again")
COMMITS = ("lose_commit", "second_coordinator", "crash_coordinator")
TRAINERS = ("crash_owner", "crash_trainer", "fail_again_and_again")
LEASES = ("cut_off", "be_slow_to_renew", "second_coordinator", "serve")


def bug(
    *targets: tuple[object, str], also: Sequence[Patch] = (), among: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """Register the function as what replaces each of ``targets``, under its own name."""

    def register_bug(function: Any) -> Any:
        BUGS[function.__name__] = [*((owner, name, function) for owner, name in targets), *also]
        if among:
            AMONG[function.__name__] = among
        return function

    return register_bug


def rare(*targets: tuple[object, str]) -> Callable[[Any], Any]:
    """As ``bug``, for ``RARE``."""

    def register_bug(function: Any) -> Any:
        RARE[function.__name__] = [(owner, name, function) for owner, name in targets]
        return function

    return register_bug


# ---- what is sent, and applied once ----


def xor_on_retry(active: ActiveAttempt) -> bool:
    """P6: after the opened mark, overwrites only. Alone it does no harm: receivers refuse."""
    return False


BUGS["xor_on_retry"] = [
    (coordinator, "overwrites_only", xor_on_retry),
    (rules, "may_xor", lambda standing: True),
]
AMONG["xor_on_retry"] = MESSAGES


@bug((staging, "is_duplicate"), among=MESSAGES)
def no_dedup(admitted: object, payload: object) -> bool:
    """P16: a payload that comes again is dropped."""
    return False


@bug((staging, "belongs"))
def payloads_of_other_attempts_are_taken(payload: object, expected: object) -> bool:
    """P16: a payload names its attempt."""
    return True


_begin = Session.__init__


def _covers(manifest: Manifest, applied: dict[tuple[int, int], PayloadRef]) -> str:
    missing = {(ref.owner, ref.sequence) for ref in manifest.payloads} - applied.keys()
    return f"missing {missing}" if missing else ""


@bug(
    (Session, "__init__"),
    also=[
        (staging, "is_duplicate", lambda admitted, payload: (payload.owner, payload.sequence) in admitted),
        (rules, "mismatch", _covers),
        (rules, "holds_unlisted", lambda manifest, applied: False),
    ],
)
def stale_staging_reused(self: Session, applier: Any, *args: Any, **more: Any) -> None:
    """P6: what an earlier attempt received is not this one's."""
    _begin(self, applier, *args, **more)
    self._staging.admitted, self._applied = getattr(applier, "kept", ({}, {}))
    applier.kept = (self._staging.admitted, self._applied)


@bug((rules, "mismatch"))
def finished_without_the_manifest(*_: object) -> str:
    """P7: a receiver acknowledges exactly the closed lists."""
    return ""


# ---- fences ----


BUGS["no_fence"] = [
    (rules, "check_not_replaced", lambda attempt, obeyed: None),
    (rules, "check_fenced", lambda attempt, fenced: None),
    (fences.Fences, "is_cancelled", lambda self, attempt: False),
    (fences.Fences, "check_not_stopped", lambda self, attempt: None),
    (rules, "may_xor", lambda standing: True),
]
AMONG["no_fence"] = (*MESSAGES, *TRAINERS)


@bug((TurnLock, "__enter__"), among=("be_slow_to_write",))
def stop_and_wait_that_does_not_wait(self: TurnLock) -> None:
    """P6: neither a stop nor a fence is answered while a write is under way."""


_prepare = transitions.prepare


@bug((register, "prepare"), among=MESSAGES)
def retries_are_not_fenced(
    state: ControlState, candidate: CandidateId, *, epoch: int, nonce: str
) -> ControlState:
    """P3: every prepare hands out a new attempt."""
    prepared, before = _prepare(state, candidate, epoch=epoch, nonce=nonce), state.active
    if before is None or prepared.active is None:
        return prepared
    same = replace(prepared.active, attempt=before.attempt)
    return replace(prepared, number=before.attempt.number, active=same)


# ---- the record ----


@bug((MemoryControlPlane, "compare_and_set"), among=COMMITS)
def aba(self: MemoryControlPlane, expected: ControlState, state: ControlState) -> None:
    """P4: two values are never equal because they say the same."""

    def said(value: ControlState) -> object:
        active = value.active
        return value.epoch, value.record, active and (active.candidate, active.opened)

    if said(self.read(expected.run)) != said(expected):
        raise Conflict("the value is another")
    self._states[expected.run] = state


@bug((coordinator, "commit_record"), among=COMMITS)
def replaced_coordinators_commit(
    context: Context, prepared: ControlState, committed: ControlState
) -> Script[bool]:
    """P1: who was replaced does not commit."""
    state: ControlState = yield ReadState()
    rebased = replace(committed, revision=state.revision + 1, epoch=state.epoch, number=state.number)
    return (yield CompareAndSet(state, rebased)) is None


@bug((register, "resolve_commit"), among=COMMITS)
def lost_answer_taken_as_failure(*_: object) -> Script[bool]:
    """P4: a lost answer is no answer."""
    yield Pause(0.0)
    return False


@bug((register, "resolve_commit"), among=COMMITS)
def bare_read_back_taken_as_not_ours(
    context: Context, record: CommitRecord, prepared: ControlState
) -> Script[bool]:
    """P4: the write may still be on its way."""
    state: ControlState = yield ReadState()
    return state.record.attempt == record.attempt


@bug((coordinator, "store_object"), among=("fill_store",))
def full_disk_taken_as_stored(kind: str, data: bytes) -> Script[str]:
    """P3: what the record names is durable before."""
    yield StoreObject(kind, data)
    return digest_hex(data)


# ---- baselines and candidates ----


_commit_record = register.commit_record


@bug((coordinator, "commit_record"))
def baseline_early(context: Context, prepared: ControlState, committed: ControlState) -> Script[bool]:
    """P9: fold in what the record names, not what it will name."""
    yield from completion.fold_in(context, context.owners, committed.record)
    return (yield from _commit_record(context, prepared, committed))


@bug((Baseline, "_prove"), among=("die_in_fold_in",))
def torn_fold_in_accepted(self: Baseline, index: TrackerIndex) -> None:
    """P9: after a crash trackers are proven, not believed."""
    held = index.pending or index.held
    self._index, self._digests, self._version = index, dict(held.digests), held.version


@rare((register, "prepare"))
def candidate_swapped_on_retry(
    state: ControlState, candidate: Any, *, epoch: int, nonce: str
) -> ControlState:
    """P5: the opened mark and the chain of attempts are one candidate's."""
    prepared, before = _prepare(state, candidate, epoch=epoch, nonce=nonce), state.active
    if before is None or prepared.active is None or before.attempt.version != state.record.version + 1:
        return prepared
    kept = replace(prepared.active, opened=before.opened, since=before.since)
    return replace(prepared, active=kept)


@bug((coordinator, "check_owners"), among=TRAINERS)
def stale_member(active: object, record: object, reports: object) -> None:
    """P5: an owner that restarted presents another candidate."""


# ---- receivers ----


@bug((coordinator, "commit_record"))
def gate_early(context: Context, prepared: ControlState, committed: ControlState) -> Script[bool]:
    """P8: only the record opens gates."""
    yield from completion.settle(context, committed.record, committed.members)
    return (yield from _commit_record(context, prepared, committed))


@bug((rules, "after_fence"))
def complete_settled_without_the_record(standing: rules.Standing, record: CommitRecord) -> rules.Standing:
    """P8: complete(tau) is settled by a record that names tau."""
    if standing.state is ReceiverState.COMPLETE:
        return rules.Standing(ReceiverState.CLEAN, standing.version + 1, standing.opened)
    return standing if rules.stands_on(standing, record) else rules.EMPTY


@bug((coordinator, "needs_restore"))
def restarted_receivers_are_not_restored(*_: object) -> bool:
    """P11: restore, prove, then serve."""
    return False


_load = Prover.load


@bug((Prover, "load"))
def restore_from_an_uncommitted_attempt(self: Prover, record: CommitRecord, cancelled: Any) -> Any:
    """P8: a restore brings what the record names."""
    archive: Any = self._archive
    found = [
        from_json(Manifest, archive._store.get(key)) for key in archive._store.list(f"{record.run}/manifest/")
    ]
    for newer in [manifest for manifest in found if manifest.parent == (record.attempt, record.manifest)]:
        audit = archive.put_object("audit", to_json(join_audit(CATALOGUE, newer.owners)))
        attempt, manifest = newer.attempt, digest_hex(to_json(newer))
        record = replace(record, version=attempt.version, attempt=attempt, manifest=manifest, audit=audit)
        break
    return _load(self, record, cancelled)


@bug((ServingGate, "_clear_for"), among=("serve", "lose_call"))
def missing_flush(self: ServingGate, version: int) -> None:
    """R19: caches are cleared before the first request that sees other weights."""


@bug((ServingGate, "close"), among=("serve", "lose_call"))
def requests_in_flight_are_not_waited_for(self: ServingGate) -> None:
    """R19: a request sees one version from its first token to its last."""
    self._open = False


# ---- membership and leases ----


@bug((coordinator, "finish"), among=MESSAGES)
def quorum_shrunk_in_mid_attempt(context: Context, manifest: Manifest, digest: str) -> Script[Any]:
    """P11: required sets are fixed for an attempt; who does not answer in it makes it fail."""
    calls = to_all(manifest.required, "finish", attempt=manifest.attempt, manifest=digest)
    answers = yield from try_all(calls, context.config.finish_deadline_s)
    return tuple(answer for answer in answers.values() if isinstance(answer, ApplyAck))


@bug((membership, "evict"), among=LEASES)
def lease_not_waited_out(context: Context, receiver: str) -> Script[None]:
    """P11: whoever is excluded serves no more."""
    yield from membership.remove(context, receiver)


@rare((membership, "evict"))
def skew_not_waited_out(context: Context, receiver: str) -> Script[None]:
    """P11: clocks run at different speeds."""
    over = context.book.refuse(receiver) + context.config.lease_s
    while (left_s := over - context.clock()) > 0:
        yield Pause(left_s)
    yield from membership.remove(context, receiver)


@rare((MembershipBook, "refuse"))
def new_coordinators_wait_for_no_lease(self: MembershipBook, name: str) -> float:
    """P11: a new coordinator does not know what the last one granted."""
    self._refused.add(name)
    return self._granted.get(name, float("-inf"))


@bug((MembershipBook, "refuse"), among=LEASES)
def renewed_while_it_is_evicted(self: MembershipBook, name: str) -> float:
    """P11: grants stop before their end is waited for."""
    return max(self._taken_over, self._granted.get(name, self._taken_over))


@bug((membership, "check_grant"))
def granted_without_reading_the_record(*_: object) -> None:
    """P11: a lease is for members that hold what is committed."""


_extend = Lease.extend


@bug((Lease, "extend"), among=LEASES)
def lease_counted_from_its_receipt(self: Lease, until: float) -> None:
    """P11: the coordinator counts from its answer on, and that was earlier."""
    _extend(self, self.clock() + LEASE_S)


@bug((ServingGate, "enter"), among=LEASES)
@contextmanager
def answers_leave_without_a_lease(self: ServingGate) -> Iterator[int]:
    """P11: the lease is checked again when an answer leaves."""
    if not self._admits():
        raise Unreachable("shut")
    self._in_flight += 1
    try:
        yield self._version
    finally:
        self._in_flight -= 1


@bug((rules, "after_settle"))
def joins_without_proof(standing: rules.Standing, record: CommitRecord) -> rules.Standing:
    """P11: joining is restoring, proving, then serving."""
    if standing.state is ReceiverState.COMPLETE and standing.opened != record.attempt:
        raise Conflict("another attempt was committed")
    return rules.clean(record)
