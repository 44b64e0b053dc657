"""Transitions that are given up: the dense last attempt, abandoned ones, rollbacks (P12)."""

from pathlib import Path

import numpy as np
import pytest
from tests.unit.small_runs import CONFIG, NAMES, SmallRun, encodings, words

from dcr.errors import AttemptFailed, Conflict, TransitionAbandoned
from dcr.model import ApplyAck, AttemptId, Encoding, OwnerClose, ReceiverState


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path).begin()


def test_the_last_attempt_is_dense_and_starts_from_a_proven_version(run: SmallRun) -> None:
    """A receiver fails until it has been restored: overwrites of the changes alone never help."""
    agent = run.receivers["runtime-1"].agent
    run.receivers["runtime-1"].resident["whole"][:] ^= 0xFF  # decayed where the candidate changes nothing
    finish = agent.finish
    failures = iter(range(CONFIG.max_attempts))

    def fail(attempt: AttemptId, manifest: str) -> ApplyAck:
        if next(failures, None) is not None:
            raise AttemptFailed("a check failed")
        return finish(attempt, manifest)

    agent.finish = fail  # type: ignore[method-assign]
    report = run.sync()
    manifest = report.manifest
    assert (report.num_attempts, manifest.overwrite_only) == (CONFIG.max_attempts + 1, True)
    assert encodings(run, manifest) == {Encoding.OVERWRITE}
    whole = sum(tensor.spec.num_elements for tensor in run.fleet.tensors)
    assert sum(ack.num_values for ack in report.acks) == len(NAMES) * whole
    run.renew()
    run.check()
    assert run.served == [1, 1, 1]
    assert encodings(run, run.sync().manifest) == {Encoding.DELTA16}


def test_an_abandoned_transition_leaves_v_and_rollback_serves_it_again(run: SmallRun) -> None:
    agent = run.receivers["runtime-1"].agent
    finish = agent.finish

    def fail(attempt: AttemptId, manifest: str) -> ApplyAck:
        raise AttemptFailed("a check failed")

    agent.finish = fail  # type: ignore[method-assign]
    told = r"step 1: 4 attempts failed, the last of them a dense refit.*dcr rollback.*a check failed"
    with pytest.raises(TransitionAbandoned, match=told):
        run.sync()
    state = run.state
    assert (state.active, state.record.version, state.members) == (None, 0, NAMES)
    run.renew()
    assert run.served == [None, None, None], "gates that shut stay shut"
    done = run.service.rollback()
    assert (done.record, done.serving, done.failed) == (state.record, NAMES, {})
    run.renew()
    assert run.served == [0, 0, 0]
    run.check()
    assert run.state.number == state.number + 1
    agent.finish = finish  # type: ignore[method-assign]
    report = run.service.transition(1, 0)
    assert (report.record.version, report.num_attempts) == (1, 1)
    assert encodings(run, report.manifest) == {Encoding.DELTA16}
    run.renew()
    run.check()


def test_after_an_abandoned_transition_receivers_are_admitted_as_ever(run: SmallRun) -> None:
    """Its last attempt was stopped on every one of them, for good."""
    for owner in run.fleet.owners:

        def fail(*_: object, **__: object) -> OwnerClose:
            raise AttemptFailed("the network is down")

        owner.construct = fail  # type: ignore[method-assign]
    with pytest.raises(TransitionAbandoned):
        run.sync()
    assert run.receivers["runtime-0"].agent.report().state is ReceiverState.MIXED
    for name in NAMES:
        assert run.service.admit(name).state is ReceiverState.CLEAN
    run.renew()
    assert run.served == [0, 0, 0]
    run.check()


def test_a_rollback_serves_with_those_that_can_and_names_the_others(run: SmallRun) -> None:
    run.receivers["runtime-0"].stopped = True
    run.restart("runtime-2")
    done = run.service.rollback()
    assert done.serving == ("runtime-1", "runtime-2")
    assert list(done.failed) == ["runtime-0"]
    assert "fence: Unreachable" in done.failed["runtime-0"]
    run.renew()
    run.receivers["runtime-0"].stopped = False
    assert run.service.rollback().serving == NAMES
    run.renew()
    assert run.served == [0, 0, 0]
    run.check()


def test_what_was_abandoned_cannot_take_effect_after_a_rollback(run: SmallRun) -> None:
    """A call of the dense attempt arrives late, when v is served again."""
    agent = run.receivers["runtime-0"].agent
    late: list[AttemptId] = []
    open_apply = agent.open_apply

    def lose(attempt: AttemptId, record: object, manifest: str | None = None) -> None:
        late.append(attempt)
        raise AttemptFailed("the connection broke")

    agent.open_apply = lose  # type: ignore[method-assign]
    with pytest.raises(TransitionAbandoned):
        run.sync()
    run.service.rollback()
    run.renew()
    for attempt in late:
        with pytest.raises(Conflict, match="replaced by"):
            open_apply(attempt, run.state.record)
    assert run.served == [0, 0, 0]
    assert np.array_equal(run.receivers["runtime-0"].resident["split"], words(0)["split"])
