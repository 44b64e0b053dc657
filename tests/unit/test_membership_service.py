"""Members that hang, leave, join and fail, behind a real service: what is committed, and who serves what."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from tests.unit.small_runs import CONFIG, NAMES, SmallRun, encodings

from dcr.errors import AttemptFailed, ConfigError, Conflict, TransitionAbandoned, Unreachable
from dcr.model import ApplyAck, AttemptId, ControlState, Encoding, ReceiverState


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path).begin()


# ---- leases ----


def test_only_the_committed_version_is_served_and_only_under_a_lease(run: SmallRun) -> None:
    assert run.served == [0, 0, 0]
    run.clock.pass_(9.9)
    assert run.served == [0, 0, 0]
    run.clock.pass_(0.1)
    assert run.served == [None, None, None], "the coordinator was not heard of for too long"
    assert run.renew() == []
    assert run.sync().manifest.required == NAMES
    assert run.served == [1, 1, 1]
    run.check()


def test_leases_are_renewed_while_a_transition_waits_and_while_a_run_is_taken_over(run: SmallRun) -> None:
    refused: list[list[str]] = []
    run.before["runtime-1", "finish"] = lambda: refused.append(run.renew())
    run.sync()
    run.service = run.new_service()
    run.before["owner-0", "fold_in"] = lambda: refused.append(run.renew())
    run.service.open_run(resume=True)
    assert refused == [[], []]
    assert run.renew() == []


def away(*_: object, **__: object) -> NoReturn:
    raise Unreachable("no route to this owner")


def test_a_take_over_that_could_not_finish_the_last_commit_is_one_all_the_same(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Owners stay away, from the commit on. Nobody else has the run, so there is nobody to stand down for."""
    with monkeypatch.context() as patch:
        for owner in run.fleet.owners:
            patch.setattr(owner, "fold_in", away)
        with pytest.raises(Unreachable, match="version 1 is committed, but its fold-in is missing"):
            run.sync()
        for owner in run.fleet.owners:
            patch.setattr(owner, "collect", away)
        with pytest.raises(Unreachable, match="version 1"):
            run.service.open_run(resume=True)
    assert run.service.admit("runtime-1").version == 1
    assert run.renew() == ["runtime-0", "runtime-2"], "nobody has told them what became of their attempt"
    assert run.served == [None, 1, None]
    assert run.service.rollback().serving == NAMES
    assert run.renew() == []
    assert run.leave("runtime-0") == ("runtime-1", "runtime-2")
    for owner in run.fleet.owners:
        owner.withdraw()
    assert run.sync().record.version == 2, "trackers were brought to version 1 by the transition itself"
    run.check()


def test_another_models_catalogue_claims_nothing(run: SmallRun) -> None:
    other = replace(run.fleet.catalogue, tensors=())
    with pytest.raises(ConfigError, match="names, shapes or dtypes"):
        run.service.open_run(resume=True, catalogue=other)
    assert run.state.epoch == 1
    assert run.renew() == []
    assert run.sync().record.version == 1


def test_a_coordinator_that_was_replaced_grants_nothing(run: SmallRun) -> None:
    old, run.service = run.service, run.new_service()
    with pytest.raises(Unreachable, match="open_run first"):
        run.service.renew("runtime-0", "i", None)
    run.service.open_run(resume=True)
    agent = run.receivers["runtime-0"].agent
    with pytest.raises(Conflict, match="stand down"):
        old.renew("runtime-0", agent.incarnation, agent.base)
    assert run.renew() == []


def test_a_restarted_receiver_serves_again_and_its_predecessor_does_not(run: SmallRun) -> None:
    zombie = run.receivers["runtime-1"]
    run.restart("runtime-1")
    run.sync()
    assert run.renew() == []
    assert run.served == [1, 1, 1]
    with pytest.raises(Conflict, match="runtime-1 was restarted"):
        run.service.renew("runtime-1", zombie.agent.incarnation, run.state.record.attempt)


# ---- stragglers ----


@pytest.mark.parametrize("method", ["fence", "open_apply", "finish", "settle"])
def test_a_receiver_that_hangs_is_evicted_and_serves_nothing_stale(run: SmallRun, method: str) -> None:
    """Wherever it stops. It has parts of a version that no other one holds, and comes back proven."""
    hung = run.receivers["runtime-1"]

    def stop() -> None:
        hung.stopped = True

    run.before["runtime-1", method] = stop
    report = run.sync()
    if method == "settle":
        assert report.manifest.required == NAMES, "it had acknowledged"
        report = run.sync()
    others = ("runtime-0", "runtime-2")
    assert (report.manifest.required, run.state.members) == (others, others)
    assert {ack.receiver for ack in report.acks} == set(others)
    version = report.record.version
    hung.stopped = False
    assert run.served == [version, None, version]
    run.check()
    assert run.renew() == ["runtime-1"]
    assert run.served == [version, None, version], "its lease is over and it gets no other"
    assert run.service.admit("runtime-1").version == version
    assert run.state.members == NAMES
    assert run.renew() == []
    assert run.served == [version, version, version]
    run.check()
    assert run.sync().manifest.required == NAMES
    run.check()


def test_an_eviction_never_overtakes_a_lease(run: SmallRun) -> None:
    """It hangs with a fresh lease: the commit without it comes after the lease's last moment."""
    hung = run.receivers["runtime-1"]
    run.config = replace(CONFIG, evict_after_s=1.0, fence_deadline_s=1.0)
    run.service = run.new_service()
    run.service.open_run(resume=True)
    run.renew()
    until = run.clock.now + hung.lease.left_s()
    hung.stopped = True
    run.sync()
    assert run.state.members == ("runtime-0", "runtime-2")
    assert run.clock.now >= until + 1.0


def test_attempts_go_on_until_its_time_is_over(run: SmallRun) -> None:
    hung = run.receivers["runtime-2"]
    hung.stopped = True
    run.config = replace(CONFIG, max_attempts=10)
    run.service = run.new_service()
    run.service.open_run(resume=True)
    began = run.clock.now
    report = run.sync()
    assert run.clock.now - began >= CONFIG.evict_after_s
    assert report.num_attempts == 5, "four fences of 5 s, then one without it"
    assert encodings(run, report.manifest) == {Encoding.DELTA16}, "nobody had opened an attempt"


def test_a_receiver_that_fails_now_and_then_is_no_straggler(run: SmallRun) -> None:
    """Each time the next attempt succeeds with it."""
    agent = run.receivers["runtime-1"].agent
    finish = agent.finish

    def lose_one(attempt: AttemptId, manifest: str) -> ApplyAck:
        agent.finish = finish  # type: ignore[method-assign]
        raise Unreachable("the connection broke")

    for _ in range(3):
        agent.finish = lose_one  # type: ignore[method-assign]
        assert run.sync().num_attempts == 2
        run.clock.pass_(CONFIG.evict_after_s)
        run.renew()
    assert run.state.members == NAMES
    run.check()


def test_a_quorum_is_kept_and_without_eviction_the_transition_is_abandoned(tmp_path: Path) -> None:
    run = SmallRun(tmp_path, replace(CONFIG, min_receivers=2)).begin()
    for name in NAMES[:2]:
        run.receivers[name].stopped = True
    with pytest.raises(TransitionAbandoned, match="runtime-1: Unreachable"):
        run.sync()
    assert run.state.members == ("runtime-1", "runtime-2")
    assert (run.state.record.version, run.state.active) == (0, None)
    run.receivers["runtime-1"].stopped = False
    assert run.service.transition(1, 0).manifest.required == ("runtime-1", "runtime-2")
    run.renew()
    assert run.served == [None, 1, 1]
    run.check()


def test_one_that_another_candidate_tore_is_restored_when_it_joins_in_the_midst(run: SmallRun) -> None:
    """Torn by A and evicted; B is opened without it; it asks to be admitted between two attempts of B."""
    torn = run.receivers["runtime-1"]
    run.before["runtime-1", "finish"] = lambda: setattr(torn, "stopped", True)
    run.config = replace(CONFIG, max_attempts=1, evict_after_s=9.0)
    run.service = run.new_service()
    run.service.open_run(resume=True)
    broken = run.receivers["runtime-0"].agent
    finish = broken.finish

    def fail(attempt: AttemptId, manifest: str) -> ApplyAck:
        raise AttemptFailed("a check failed")

    broken.finish = fail  # type: ignore[method-assign]
    with pytest.raises(TransitionAbandoned):
        run.sync()
    assert run.state.members == ("runtime-0", "runtime-2")
    for owner in run.fleet.owners:
        owner.withdraw()
    run.step += 1
    with pytest.raises(TransitionAbandoned):
        run.sync()
    torn.stopped = False
    assert torn.agent.report().state is not ReceiverState.CLEAN
    assert run.service.admit("runtime-1").state is ReceiverState.CLEAN
    broken.finish = finish  # type: ignore[method-assign]
    run.service.transition(run.step, 0)
    run.renew()
    assert run.served == [1, 1, 1]
    run.check()


# ---- joining and leaving ----


def test_a_receiver_that_the_roster_does_not_name_joins_and_is_required(run: SmallRun) -> None:
    run.restart("guest")
    assert run.service.admit("guest").version == 0
    assert run.state.members == ("guest", *NAMES)
    assert run.sync().manifest.required == ("guest", *NAMES)
    run.renew()
    assert run.served == [1, 1, 1, 1]
    with pytest.raises(ConfigError, match="another party"):
        run.service.admit("owner-0")
    with pytest.raises(Unreachable, match="nobody"):
        run.service.admit("nobody")
    assert run.state.members == ("guest", *NAMES)


def test_a_receiver_leaves_in_mid_attempt_and_the_others_go_on(run: SmallRun) -> None:
    for when in ("fence", "finish"):
        name = "runtime-0" if when == "fence" else "runtime-1"
        run.before["runtime-2", when] = partial(run.leave, name)
        report = run.sync()
        assert (name in report.manifest.required, report.num_attempts) == (False, 2)
    assert run.state.members == ("runtime-2",)
    assert run.leave("runtime-1") == ("runtime-2",)
    assert run.renew() == ["runtime-0", "runtime-1"]


def test_who_has_left_is_not_waited_for_until_it_comes_back(run: SmallRun) -> None:
    assert "runtime-0" not in run.departures
    run.leave("runtime-0")
    assert "runtime-0" in run.departures
    run.restart("runtime-0")
    run.service.admit("runtime-0")
    assert "runtime-0" not in run.departures
    with pytest.raises(Conflict):
        run.service.leave("runtime-0", "the one before")
    assert "runtime-0" not in run.departures


def test_a_leaving_that_hangs_does_not_remove_the_successor(run: SmallRun) -> None:
    """Its caller has given up and the next process of that name serves when the control plane answers."""
    first, before = run.receivers["runtime-1"], run.plane.compare_and_set
    first.lease.end()

    def hang(expected: ControlState, state: ControlState) -> None:
        run.plane.compare_and_set = before  # type: ignore[method-assign]
        run.restart("runtime-1")
        run.service.admit("runtime-1")
        assert run.renew() == []
        before(expected, state)

    run.plane.compare_and_set = hang  # type: ignore[method-assign]
    with pytest.raises(Conflict, match="runtime-1 is known as"):
        run.leave("runtime-1")
    assert run.state.members == NAMES
    assert run.sync().manifest.required == NAMES
    assert run.renew() == []
    assert run.served == [1, 1, 1]
    run.check()


def test_without_any_member_nothing_is_committed(run: SmallRun) -> None:
    for name in NAMES:
        run.leave(name)
    with pytest.raises(AttemptFailed, match="0 receivers are members"):
        run.sync()
    run.service.admit("runtime-2")
    assert run.service.transition(1, 0).manifest.required == ("runtime-2",)


def test_a_request_waits_for_receivers_that_are_just_joining(run: SmallRun) -> None:
    """They could not join any more once it has begun."""
    for name in NAMES:
        run.leave(name)
    run.config = replace(CONFIG, collect_deadline_s=10.0)
    run.service = run.new_service()
    run.service.open_run(resume=True)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            run.service.admit("runtime-1")

    object.__setattr__(run.service._driver, "pause", pause)
    assert run.sync().manifest.required == ("runtime-1",)
