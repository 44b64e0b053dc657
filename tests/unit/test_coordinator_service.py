"""Driver, service and remote endpoints around the scripts, with real agents in this process."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.parties import CATALOGUE, fresh_words
from tests.simulation.world import RUN, World

from dcr.commit.context import Roster
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.driver import Driver
from dcr.commit.effects import Call, Gather, Script
from dcr.commit.remote import HttpCaller, Party, RemoteOwner, remote_endpoints
from dcr.commit.service import CoordinatorService
from dcr.config import CommitConfig
from dcr.errors import AttemptFailed, ConfigError, Conflict, TransitionAbandoned, Unreachable, UnsupportedPath
from dcr.model import GENESIS, ApplyAck, AttemptId, CommitRecord, OwnerReport, PathClass, ReceiverState
from dcr.transport.peers import Peers
from dcr.transport.rpc import serve

CONFIG = CommitConfig(max_attempts=2, retry_pause_s=0.0, collect_deadline_s=0.0)
ROSTER = Roster(("owner-0", "owner-1"), ("runtime-0", "runtime-1"))
RECORD = CommitRecord(RUN, 0, GENESIS, 1, "w", None, 0, "c", "m", "a")


class Bench:
    """The parties of a simulated world behind a service; nothing is created yet."""

    def __init__(self) -> None:
        self.world = World()
        self.world.plane = MemoryControlPlane()
        self.service = self.new_service()

    def new_service(self) -> CoordinatorService:
        world = self.world
        parties: dict[str, object] = {owner.name: owner.agent for owner in world.owners}
        parties |= {receiver.name: receiver.agent for receiver in world.receivers}
        driver = Driver(world.plane, world.archive, parties, RUN, pause=lambda seconds: None)
        return CoordinatorService(driver, CONFIG, ROSTER)

    @property
    def served(self) -> list[int | None]:
        """What requests are answered with, by receiver; None while its gate is shut."""
        gates = [receiver.serving.gate for receiver in self.world.receivers]
        return [gate.version if gate.is_open else None for gate in gates]

    def train(self, step: int) -> None:
        words = fresh_words()
        words["split"][0] = step
        for owner in self.world.owners:
            owner.present(step, words)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.world.close()


def test_a_run_from_creation_over_restarts_to_its_third_version(bench: Bench) -> None:
    first = bench.service.open_run(resume=False, catalogue=CATALOGUE)
    assert (first.version, first.attempt) == (0, GENESIS)
    for name in ROSTER.receivers:
        assert bench.service.admit(name).state is ReceiverState.CLEAN
    bench.train(1)
    report = bench.service.transition(1, 0)
    assert (report.record.version, report.num_attempts, len(report.acks)) == (1, 1, 2)
    assert report.manifest.parent == (GENESIS, first.manifest)
    again = bench.service.transition(1, 0)
    assert (again.record, again.acks, again.manifest) == (report.record, (), report.manifest)
    bench.service = bench.new_service()
    assert bench.service.open_run(resume=True) == report.record
    bench.train(2)
    assert bench.service.transition(2, 1).record.version == 2
    assert bench.service.record().step == 2
    assert bench.served == [2, 2]


def test_a_second_run_in_the_same_place_is_refused(bench: Bench) -> None:
    bench.service.open_run(resume=False, catalogue=CATALOGUE)
    assert bench.service.open_run(resume=False, catalogue=CATALOGUE).version == 0, "its answer was lost"
    with pytest.raises(ConfigError, match="resume=true"):
        bench.new_service().open_run(resume=False, catalogue=CATALOGUE)
    bench.train(1)
    bench.service.transition(1, 0)
    with pytest.raises(ConfigError, match="version 1; continue it with resume=true"):
        bench.service.open_run(resume=False, catalogue=CATALOGUE)


def test_what_cannot_be_opened_says_why(bench: Bench) -> None:
    with pytest.raises(Unreachable, match="open_run first"):
        bench.service.transition(1, 0)
    with pytest.raises(ConfigError, match="does not exist"):
        bench.service.open_run(resume=True)
    with pytest.raises(ConfigError, match="catalogue"):
        bench.service.open_run(resume=False)
    with pytest.raises(ConfigError, match="is of run"):
        bench.service.open_run(resume=False, catalogue=replace(CATALOGUE, run="0" * 32))
    bench.service.open_run(resume=False, catalogue=CATALOGUE)
    with pytest.raises(Unreachable, match="no endpoint is named runtime-7"):
        bench.service.admit("runtime-7")
    with pytest.raises(ConfigError, match="names, shapes or dtypes"):
        bench.new_service().open_run(resume=True, catalogue=replace(CATALOGUE, tensors=()))
    with pytest.raises(ConfigError, match="'owner-1': this is the name of another party"):
        bench.service.admit("owner-1")
    with pytest.raises(ConfigError, match=r"'../x': a name is letters"):
        bench.service.admit("../x")


def test_a_refused_tensor_ends_the_transition_before_anything_is_opened(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.service.open_run(resume=False, catalogue=CATALOGUE)
    for name in ROSTER.receivers:
        bench.service.admit(name)
    agent: Any = bench.world.receivers[1].agent
    monkeypatch.setitem(agent._held.classification, "whole", PathClass.REFUSED)
    bench.train(1)
    with pytest.raises(UnsupportedPath, match="'whole': runtime-1"):
        bench.service.transition(1, 0)
    state = bench.world.state
    assert (state.record.version, state.active) == (0, None)
    assert bench.served == [0, 0], "nobody stopped serving"
    monkeypatch.setitem(agent._held.classification, "whole", PathClass.XOR)
    assert bench.service.transition(1, 0).num_attempts == 1


def test_a_replaced_service_stands_down(bench: Bench) -> None:
    bench.service.open_run(resume=False, catalogue=CATALOGUE)
    bench.new_service().open_run(resume=True)
    bench.train(1)
    with pytest.raises(Conflict, match="stand down"):
        bench.service.transition(1, 0)


def test_a_receiver_is_admitted_after_attempts_that_failed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It obeys an attempt later than the record's; admission goes on from there."""
    bench.service.open_run(resume=False, catalogue=CATALOGUE)
    bench.train(1)
    broken = bench.world.receivers[1]

    def fail(attempt: AttemptId, manifest: str) -> ApplyAck:
        raise AttemptFailed("a check failed")

    monkeypatch.setattr(broken.agent, "finish", fail)
    told = r"3 attempts failed.*dense.*abandoned.*dcr rollback.*runtime-1: AttemptFailed: a check failed"
    with pytest.raises(TransitionAbandoned, match=told):
        bench.service.transition(1, 0)
    assert (bench.world.state.active, bench.world.state.record.version) == (None, 0)
    broken.start()
    bench.service = bench.new_service()
    bench.service.open_run(resume=True)
    assert bench.service.admit(broken.name).version == 0
    assert broken.agent.report().fenced == AttemptId(3, 1)
    assert bench.served == [None, 0]
    assert not bench.service.transition(1, 0).manifest.overwrite_only, "what was torn is restored"
    assert bench.served == [1, 1]


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


def test_endpoints_over_http_find_a_restarted_party(tmp_path: Path) -> None:
    """Real agents behind real servers; the first server goes away and another port takes its name."""
    bench, peers = Bench(), Peers(tmp_path / "endpoints")
    owner: Any = bench.world.owners[0].agent
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
    bench.world.close()
