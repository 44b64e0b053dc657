"""The simulation must be able to fail: each seeded bug, a replaced function of the real code, is found.

Where the code defends twice, a bug replaces both functions: otherwise it would be harmless.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from dcr.commit import completion, coordinator, register, transitions
from dcr.commit.context import Context
from dcr.commit.effects import CompareAndSet, Pause, ReadState, Script
from dcr.model import ActiveAttempt, CommitRecord, ControlState, ReceiverState
from dcr.receiver import fences, rules, staging
from tests.simulation.test_commit_protocol import CommitProtocol

Patch = tuple[object, str, Any]
BUGS: dict[str, Sequence[Patch]] = {}


def bug(*targets: tuple[object, str]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the function as what replaces each of ``targets``, under its own name."""

    def register_bug(function: Callable[..., Any]) -> Callable[..., Any]:
        BUGS[function.__name__] = [(module, name, function) for module, name in targets]
        return function

    return register_bug


@bug((coordinator, "overwrites_only"))
def xor_on_retry(active: ActiveAttempt) -> bool:
    return False


BUGS["xor_on_retry_and_receivers_take_it"] = [
    (coordinator, "overwrites_only", xor_on_retry),
    (rules, "may_xor", lambda standing: True),
]


@bug((staging, "is_duplicate"))
def no_dedup(admitted: object, payload: object) -> bool:
    return False


@bug((staging, "belongs"))
def payloads_of_other_attempts_are_taken(payload: object, expected: object) -> bool:
    return True


BUGS["no_fence"] = [
    (rules, "check_not_replaced", lambda attempt, obeyed: None),
    (rules, "check_fenced", lambda attempt, fenced: None),
    (fences.Fences, "is_cancelled", lambda self, attempt: False),
    (fences.Fences, "check_not_stopped", lambda self, attempt: None),
    (rules, "may_xor", lambda standing: True),
]


_prepare = transitions.prepare


@bug((register, "prepare"))
def retries_are_not_fenced(state: ControlState, candidate: Any, *, epoch: int, nonce: str) -> ControlState:
    prepared, before = _prepare(state, candidate, epoch=epoch, nonce=nonce), state.active
    if before is None or prepared.active is None:
        return prepared
    same = replace(prepared.active, attempt=before.attempt)
    return replace(prepared, number=before.attempt.number, active=same)


@bug((coordinator, "commit_record"))
def replaced_coordinators_commit(
    context: Context, prepared: ControlState, committed: ControlState
) -> Script[bool]:
    state: ControlState = yield ReadState()
    rebased = replace(committed, revision=state.revision + 1, epoch=state.epoch, number=state.number)
    return (yield CompareAndSet(state, rebased)) is None


@bug((register, "resolve_commit"))
def lost_answer_taken_as_failure(*_: object) -> Script[bool]:
    yield Pause(0.0)
    return False


@bug((register, "resolve_commit"))
def bare_read_back_taken_as_not_ours(
    context: Context, record: CommitRecord, prepared: ControlState
) -> Script[bool]:
    state: ControlState = yield ReadState()
    return state.record.attempt == record.attempt


_commit_record = register.commit_record


@bug((coordinator, "commit_record"))
def baseline_early(context: Context, prepared: ControlState, committed: ControlState) -> Script[bool]:
    yield from completion.fold_in(context, context.owners, committed.record)
    return (yield from _commit_record(context, prepared, committed))


@bug((coordinator, "commit_record"))
def gate_early(context: Context, prepared: ControlState, committed: ControlState) -> Script[bool]:
    yield from completion.settle(context, committed.record)
    return (yield from _commit_record(context, prepared, committed))


@bug((transitions, "same_transition"))
def candidate_swapped_on_retry(state: ControlState, candidate: object) -> bool:
    return state.active is not None and state.active.attempt.version == state.record.version + 1


@bug((coordinator, "check_owners"))
def stale_member(active: object, record: object, reports: object) -> None:
    return None


@bug((rules, "after_fence"))
def complete_settled_without_the_record(standing: rules.Standing, record: CommitRecord) -> rules.Standing:
    if standing.state is ReceiverState.COMPLETE:
        return rules.Standing(ReceiverState.CLEAN, standing.version + 1, standing.opened)
    return standing if rules.stands_on(standing, record) else rules.EMPTY


@bug((rules, "mismatch"))
def finished_without_the_manifest(*_: object) -> str:
    return ""


_finish = coordinator.finish


@bug((coordinator, "finish"))
def one_receiver_is_enough(context: Context, manifest: Any, digest: str) -> Script[Any]:
    return (yield from _finish(replace(context, receivers=context.receivers[:1]), manifest, digest))


@bug((coordinator, "needs_restore"))
def restarted_receivers_are_not_restored(report: object, version: int, opened: bool) -> bool:
    return False


@pytest.mark.parametrize("name", sorted(BUGS))
def test_the_simulation_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for target, attribute, replacement in BUGS[name]:
        assert hasattr(target, attribute), "the code was renamed: this bug is no longer seeded"
        monkeypatch.setattr(target, attribute, replacement)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            CommitProtocol,
            settings=settings(
                max_examples=400, stateful_step_count=6, database=None, derandomize=True, deadline=None,
                phases=[Phase.generate], report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
            ),
        )  # fmt: skip
