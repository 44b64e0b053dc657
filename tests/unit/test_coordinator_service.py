"""Driver, service and remote endpoints around the scripts, with real agents in this process."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.small_runs import NAMES, SmallRun

from dcr.commit.context import Roster
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.driver import Driver
from dcr.commit.effects import Call, Gather, Script
from dcr.commit.remote import Departures, HttpCaller, Party, RemoteOwner, RemoteReceiver, remote_endpoints
from dcr.config import CommitConfig
from dcr.errors import AttemptFailed, ConfigError, Conflict, TransitionAbandoned, Unreachable, UnsupportedPath
from dcr.model import (
    GENESIS,
    ApplyAck,
    AttemptId,
    CommitRecord,
    OwnerReport,
    PathClass,
    ReceiverReport,
    ReceiverState,
)
from dcr.transport.peers import Peers
from dcr.transport.rpc import serve

CONFIG = CommitConfig(max_attempts=2, retry_pause_s=0.0, collect_deadline_s=0.0, lease_s=0.0)
RUN = "r" * 32
ROSTER = Roster(("owner-0", "owner-1"), NAMES)
RECORD = CommitRecord(RUN, 0, GENESIS, 1, "w", None, 0, "c", "m", "a")


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    """Nothing is created yet; nobody needs a lease."""
    return SmallRun(tmp_path, CONFIG)


def test_a_run_from_creation_over_restarts_to_its_third_version(run: SmallRun) -> None:
    first = run.service.open_run(resume=False, catalogue=run.fleet.catalogue)
    assert (first.version, first.attempt) == (0, GENESIS)
    for name in NAMES:
        assert run.service.admit(name).state is ReceiverState.CLEAN
    run.present()
    report = run.service.transition(1, 0)
    assert (report.record.version, report.num_attempts, len(report.acks)) == (1, 1, 3)
    assert report.manifest.parent == (GENESIS, first.manifest)
    again = run.service.transition(1, 0)
    assert (again.record, again.acks, again.manifest) == (report.record, (), report.manifest)
    assert again.num_attempts == 0, "it was found, and nobody knows any more after how many"
    run.service = run.new_service()
    assert run.service.open_run(resume=True) == report.record
    run.present()
    assert run.service.transition(2, 1).record.version == 2
    assert run.service.record().step == 2
    assert run.served == [2, 2, 2]


def test_a_second_run_in_the_same_place_is_refused(run: SmallRun) -> None:
    run.service.open_run(resume=False, catalogue=run.fleet.catalogue)
    assert run.service.open_run(resume=False, catalogue=run.fleet.catalogue).version == 0, (
        "its answer was lost"
    )
    with pytest.raises(ConfigError, match="resume=true"):
        run.new_service().open_run(resume=False, catalogue=run.fleet.catalogue)
    run.present()
    run.service.transition(1, 0)
    with pytest.raises(ConfigError, match="version 1; continue it with resume=true"):
        run.service.open_run(resume=False, catalogue=run.fleet.catalogue)


def test_what_cannot_be_opened_says_why(run: SmallRun) -> None:
    with pytest.raises(Unreachable, match="open_run first"):
        run.service.transition(1, 0)
    with pytest.raises(ConfigError, match="does not exist"):
        run.service.open_run(resume=True)
    with pytest.raises(ConfigError, match="catalogue"):
        run.service.open_run(resume=False)
    with pytest.raises(ConfigError, match="is of run"):
        run.service.open_run(resume=False, catalogue=replace(run.fleet.catalogue, run="0" * 32))
    run.service.open_run(resume=False, catalogue=run.fleet.catalogue)
    with pytest.raises(Unreachable, match="no endpoint is named runtime-7"):
        run.service.admit("runtime-7")
    with pytest.raises(ConfigError, match="names, shapes or dtypes"):
        run.new_service().open_run(resume=True, catalogue=replace(run.fleet.catalogue, tensors=()))
    with pytest.raises(ConfigError, match="'owner-1': this is the name of another party"):
        run.service.admit("owner-1")
    with pytest.raises(ConfigError, match=r"'../x': a name is letters"):
        run.service.admit("../x")


def test_a_refused_tensor_ends_the_transition_before_anything_is_opened(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.service.open_run(resume=False, catalogue=run.fleet.catalogue)
    for name in NAMES:
        run.service.admit(name)
    agent: Any = run.receivers["runtime-1"].agent
    monkeypatch.setitem(agent._held.classification, "whole", PathClass.REFUSED)
    run.present()
    with pytest.raises(UnsupportedPath, match="'whole': runtime-1"):
        run.service.transition(1, 0)
    state = run.state
    assert (state.record.version, state.active) == (0, None)
    assert run.served == [0, 0, 0], "nobody stopped serving"
    monkeypatch.setitem(agent._held.classification, "whole", PathClass.XOR)
    assert run.service.transition(1, 0).num_attempts == 1


def test_a_replaced_service_stands_down(run: SmallRun) -> None:
    run.service.open_run(resume=False, catalogue=run.fleet.catalogue)
    run.new_service().open_run(resume=True)
    run.present()
    with pytest.raises(Conflict, match="stand down"):
        run.service.transition(1, 0)


def test_a_receiver_is_admitted_after_attempts_that_failed(
    run: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It obeys an attempt later than the record's; admission goes on from there."""
    run.service.open_run(resume=False, catalogue=run.fleet.catalogue)
    run.present()
    broken = run.receivers["runtime-1"]

    def fail(attempt: AttemptId, manifest: str) -> ApplyAck:
        raise AttemptFailed("a check failed")

    monkeypatch.setattr(broken.agent, "finish", fail)
    told = r"3 attempts failed.*dense.*abandoned.*dcr rollback.*runtime-1: AttemptFailed: a check failed"
    with pytest.raises(TransitionAbandoned, match=told):
        run.service.transition(1, 0)
    assert (run.state.active, run.state.record.version) == (None, 0)
    run.restart("runtime-1")
    broken = run.receivers["runtime-1"]
    run.service = run.new_service()
    run.service.open_run(resume=True)
    assert run.service.admit(broken.name).version == 0
    assert broken.agent.report().fenced == AttemptId(4, 1), "nobody has stopped it"
    assert run.served == [None, 0, None]
    assert not run.service.transition(1, 0).manifest.overwrite_only, "what was torn is restored"
    assert run.served == [1, 1, 1]


def gather(*calls: Call, deadline_s: float) -> Script[dict[str, Any]]:
    answers: dict[str, Any] = yield Gather(calls, deadline_s)
    return answers


class Slow:
    """Answers only when let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def wait(self) -> str:
        self.go.wait(10.0)
        return "late"

    def fail(self) -> str:
        raise ZeroDivisionError("inside")


@pytest.mark.parametrize("threads", [0, 4])
def test_the_driver_answers_for_the_dead_and_the_faulty(threads: int) -> None:
    slow = Slow()
    world = MemoryControlPlane()
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        driver = Driver(world, None, {"a": slow}, RUN, pool=pool if threads else None)  # type: ignore[arg-type]
        answers = driver.execute(gather(Call("a", "fail", {}), Call("b", "wait", {}), deadline_s=5.0))
        assert "ZeroDivisionError" in str(answers["a"])
        assert isinstance(answers["a"], AttemptFailed)
        assert isinstance(answers["b"], Unreachable)
        if threads:
            late = driver.execute(gather(Call("a", "wait", {}), deadline_s=0.05))
            assert isinstance(late["a"], Unreachable)
        slow.go.set()


class FakeClock:
    """Time that passes only by pausing."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def test_a_fence_waits_for_its_party_and_an_opened_attempt_does_not() -> None:
    clock = FakeClock()
    asked: list[str] = []

    def caller(
        name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> Any:
        asked.append(method)
        if clock.now < 1.0:
            raise Unreachable("connection refused")
        return OwnerReport(0, "i", 0, None, None, "", None)

    owner = RemoteOwner(Party("owner-0", caller, CommitConfig(), clock, clock.pause))
    with pytest.raises(Unreachable):
        owner.construct(AttemptId(1, 1), RECORD, False, {})
    assert asked == ["construct"]
    assert owner.fence(AttemptId(1, 1), RECORD).incarnation == "i"
    assert 1.0 <= clock.now < 2.0
    hasty = CommitConfig(fence_deadline_s=0.5)
    impatient = RemoteOwner(Party("owner-0", caller, hasty, clock, clock.pause))
    clock.now = 0.0
    with pytest.raises(Unreachable):
        impatient.fence(AttemptId(1, 1), RECORD)


def test_a_receiver_is_waited_for_as_long_as_the_straggler_policy_says() -> None:
    clock, deadlines = FakeClock(), list[float]()

    def caller(
        name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> Any:
        deadlines.append(deadline_s)
        clock.pause(min(deadline_s, 2.0))
        raise Unreachable("no answer")

    receiver = RemoteReceiver(Party("runtime-0", caller, CommitConfig(evict_after_s=3.0), clock, clock.pause))
    with pytest.raises(Unreachable):
        receiver.fence(AttemptId(1, 1), RECORD)
    assert 3.0 <= clock.now < 3.5, "it has not failed for long enough before"
    deadlines.clear()
    for ask in (
        partial(receiver.restore, AttemptId(1, 1), RECORD),
        partial(receiver.open_apply, AttemptId(1, 1), RECORD),
        partial(receiver.finish, AttemptId(1, 1), "manifest"),
        partial(receiver.settle, RECORD),
        partial(receiver.stop_and_wait, AttemptId(1, 1)),
    ):
        with pytest.raises(Unreachable):
            ask()
    assert deadlines == [3.0] * 5


def test_nobody_waits_for_a_receiver_that_has_left() -> None:
    """Until a process of that name asks to be admitted; and one that still answers is heard."""
    clock, departures, there = FakeClock(), Departures(), {"runtime-1"}

    def caller(
        name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> Any:
        if name not in there:
            raise Unreachable("connection refused")
        return ReceiverReport(name, "i", ReceiverState.CLEAN, 1, None, None, {})

    def receiver(name: str) -> RemoteReceiver:
        return RemoteReceiver(Party(name, caller, CommitConfig(), clock, clock.pause, departures))

    for name in ("runtime-0", "runtime-1"):
        departures.leaves(name)
    with pytest.raises(Unreachable):
        receiver("runtime-0").fence(AttemptId(1, 1), RECORD)
    assert clock.now == 0.0
    assert receiver("runtime-1").fence(AttemptId(1, 1), RECORD).version == 1
    departures.comes("runtime-0")
    with pytest.raises(Unreachable):
        receiver("runtime-0").fence(AttemptId(1, 1), RECORD)
    assert clock.now >= CommitConfig().fence_deadline_s


def test_whoever_is_no_owner_is_reached_as_a_receiver() -> None:
    """A receiver that the roster does not name may join."""
    endpoints = remote_endpoints(ROSTER, HttpCaller(Peers("/nowhere")), CONFIG)
    assert isinstance(endpoints["guest"], RemoteReceiver)
    assert isinstance(endpoints["owner-1"], RemoteOwner)
    assert list(endpoints) == [*ROSTER.owners, *ROSTER.receivers]
    assert len(endpoints) == 5


def test_endpoints_over_http_find_a_restarted_party(tmp_path: Path) -> None:
    """Real agents behind real servers; the first server goes away and another port takes its name."""
    run, peers = SmallRun(tmp_path / "trackers"), Peers(tmp_path / "endpoints")
    owner: Any = run.fleet.owners[0]
    caller = HttpCaller(peers)
    endpoint: Any = remote_endpoints(ROSTER, caller, CONFIG)["owner-0"]
    with pytest.raises(Unreachable, match="not announced"):
        endpoint.stop_and_wait(AttemptId(1, 1))
    for life in ("first", "second"):
        server = serve({"collect": owner.collect, "stop_and_wait": owner.stop_and_wait})
        peers.publish("owner-0", server.url, life)
        assert endpoint.collect(None) == owner.collect(None)
        endpoint.stop_and_wait(AttemptId(1, 1))
        server.close()
    caller.close()
