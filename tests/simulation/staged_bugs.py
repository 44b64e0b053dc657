"""Seeded bugs of asynchronous mode and of the reuse of stored payloads (R19, P6); see ``bugs.py``."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from dcr.codec import decode_payload
from dcr.commit import coordinator, staged
from dcr.commit.context import Context
from dcr.commit.effects import Script
from dcr.commit.register import read_state
from dcr.model import ActiveAttempt, CommitRecord, ControlState, PayloadRef, ReceiverReport, ReceiverState
from dcr.receiver import rules, staging
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.area import StagingArea
from dcr.receiver.gate import ServingGate
from dcr.receiver.holding import Holding
from dcr.receiver.stager import StagedSource
from dcr.source.candidate import Candidate, Published
from dcr.source.owner import OwnerAgent
from dcr.source.publish import Work, _Job
from tests.simulation.bugs import MESSAGES, Patch, _covers

STAGED_BUGS: dict[str, Sequence[Patch]] = {}
STAGED_AMONG: dict[str, Sequence[str]] = {}
OPENINGS = ("die_when_opening", "fail_again_and_again")


def bug(
    *targets: tuple[object, str], also: Sequence[Patch] = (), among: Sequence[str] = ()
) -> Callable[[Any], Any]:
    """Register the function as what replaces each of ``targets``, under its own name."""

    def register_bug(function: Any) -> Any:
        STAGED_BUGS[function.__name__] = [*((owner, name, function) for owner, name in targets), *also]
        if among:
            STAGED_AMONG[function.__name__] = among
        return function

    return register_bug


def _torn_taken_as_usable(report: ReceiverReport, version: int, active: ActiveAttempt | None = None) -> bool:
    """``needs_restore`` without a look at the mark: where that is missing, this is the second defence."""
    if report.version != version:
        return True
    if report.state is ReceiverState.MIXED and active is not None:
        return report.opened is None or report.opened.number < active.since
    return report.state is not ReceiverState.CLEAN


def _commit_without_mark(state: ControlState, record: CommitRecord) -> ControlState:
    revision = state.revision + 1
    return replace(state, revision=revision, writer=record.writer, record=record, active=None)


UNDEFENDED: list[Patch] = [
    (coordinator, "needs_restore", _torn_taken_as_usable),
    (rules, "may_xor", lambda standing: True),
    (rules, "check_may_stage", lambda standing, record: None),
]
"""What else keeps differences off torn storage."""


@bug(
    (coordinator, "open_marked"),
    also=[(coordinator, "commit", _commit_without_mark), *UNDEFENDED],
    among=OPENINGS,
)
def opened_mark_missing(
    context: Context, prepared: ControlState, active: ActiveAttempt
) -> Script[ControlState]:
    """P6: a durable mark precedes the first open_apply."""
    return (yield from read_state(context))


@bug((coordinator, "staged"), also=UNDEFENDED, among=OPENINGS)
def opened_mark_after_open_apply(
    context: Context, prepared: ControlState, active: ActiveAttempt, classes: Any
) -> Script[Any]:
    """P6: a coordinator that dies in between must be known to have opened."""
    closes = yield from staged.stage(context, prepared, active, classes)
    lists = yield from coordinator.publish_lists(context, prepared, active, closes, overwrite_only=False)
    yield from staged.await_staged(context, lists.manifest, lists.digest)
    yield from staged.open_staged(context, prepared, lists.manifest, lists.digest)
    return (yield from coordinator.open_marked(context, prepared, active)), lists


@bug((coordinator, "may_name_earlier"), also=UNDEFENDED, among=OPENINGS)
def xor_reused_after_opened(active: ActiveAttempt) -> bool:
    """P6: once the mark is set, overwrites only; nothing of earlier attempts is named."""
    return True


@bug((Holding, "shut_gate"), among=("serve", "lose_call"))
def gate_closed_late(self: Holding) -> None:
    """R19: the gate shuts before anything is applied."""


_pump = ReceiverAgent._pump


@bug((ReceiverAgent, "_pump"), among=("serve", "lose_call"))
def served_mid_apply(self: ReceiverAgent, session: Any) -> int:
    """P8: a gate that has seen open_apply stays shut until the transition ends."""
    num = _pump(self, session)
    gate: Any = self._gate
    assert isinstance(gate, ServingGate)
    gate.open(session.record.version, changed=False)
    return num


_staged = ReceiverAgent.staged


@bug((ReceiverAgent, "staged"), among=("serve", "lose_call", "fail_while_staged"))
def applied_when_it_is_staged(self: ReceiverAgent, attempt: Any, manifest: str) -> Any:
    """R19: nothing of a staged delta is applied while v is served."""
    ack = _staged(self, attempt, manifest)
    record = self._held.record
    if record is not None:
        listed = self._stager.manifest(record, attempt, manifest)
        for ref in listed.payloads:
            held = self._stager._area.find(ref.digest)
            if held is not None and held.data is not None:
                self._applier.apply(decode_payload(held.data))
    return ack


_encode = _Job.encode


def _trusted(self: _Job, sequence: int, items: Any) -> Any:
    known = self.work.known.get(sequence)
    return (known, b"") if known is not None else _encode(self, sequence, items)


@bug(
    (OwnerAgent, "_reusing"),
    also=[(_Job, "encode", _trusted), (rules, "may_stage", lambda *_: True)],
    among=("change_the_candidate", "fail_while_staged"),
)
def stored_payloads_reused_across_candidates(
    self: OwnerAgent, candidate: Candidate, request: Any, work: Work
) -> Work:
    """P6: only payloads of the same transition and candidate may be named."""
    if request.since is None:
        return work
    store: Any = self._setup.transport._store  # type: ignore[attr-defined]  # of this world
    kept = store.__dict__.setdefault("kept", {})
    published = kept.setdefault((self._rank, request.record.attempt), Published(request.record.attempt, {}))
    return replace(work, known=dict(published.refs), note=lambda ref: published.note(request.attempt, ref))


def _everything(
    self: StagedSource, attempt: Any, seen: Collection[tuple[int, int]]
) -> Iterator[tuple[PayloadRef, bytes]]:
    for held in list(self._area._held.values()):
        data = self._area.take(held.digest)
        if data is not None and (held.owner, held.sequence) not in seen:
            yield PayloadRef(held.owner, held.sequence, held.digest, held.num_bytes), data


@bug(
    (rules, "discard_unnamed"),
    also=[
        (StagedSource, "fetch", _everything),
        (StagingArea, "forget_before", lambda self, number: None),
        (rules, "may_stage", lambda *_: True),
        (staging, "belongs", lambda payload, expected: True),
        (staging, "is_duplicate", lambda admitted, payload: (payload.owner, payload.sequence) in admitted),
        (rules, "mismatch", _covers),
        (rules, "holds_unlisted", lambda manifest, applied: False),
    ],
    among=("change_the_candidate", "fail_while_staged", *MESSAGES),
)
def stale_staging_applied(area: StagingArea, manifest: object) -> None:
    """P6: open_apply discards what its manifest does not name."""
