"""Asynchronous mode behind a real service: who serves what meanwhile, and what retries reuse (R19, P6)."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.small_runs import CONFIG, NAMES, SmallRun, words

from dcr import observe
from dcr.codec import decode_payload
from dcr.commit.context import TransitionReport
from dcr.commit.staged import STAGED_TRIES
from dcr.errors import AttemptFailed, ConfigError, Conflict, StoreError, Unreachable
from dcr.model import Encoding, Manifest
from dcr.receiver.area import Room, StagingArea
from dcr.refit.pump import Pump
from dcr.transport.collect import collect_between, named_earlier
from dcr.transport.replay import replay

ASYNC = replace(CONFIG, mode="async", max_attempts=6)


@pytest.fixture
def run(tmp_path: Path) -> SmallRun:
    return SmallRun(tmp_path, ASYNC).begin()


def fail(error: Exception) -> Callable[[], None]:
    def raising() -> None:
        raise error

    return raising


def encodings(run: SmallRun, manifest: Manifest) -> set[Encoding]:
    payloads = (run.fleet.archive.get_payload(manifest, ref) for ref in manifest.payloads)
    return {item.encoding for payload in payloads for item in decode_payload(payload).items}


def uploads(run: SmallRun) -> list[str]:
    return run.fleet.store.list(f"{run.run_id}/payload/1-") + run.fleet.store.list(f"{run.run_id}/payload/2-")


def committed(run: SmallRun, report: TransitionReport) -> None:
    """Everybody serves exactly the step, and the chain rebuilds it."""
    assert run.served == [report.record.version] * len(NAMES)
    run.check()
    rebuilt = replay(run.fleet.archive, report.record, run.fleet.catalogue)
    assert all((rebuilt[name] == bits).all() for name, bits in words(run.step).items())


def test_everybody_serves_v_until_the_last_payload_is_staged_everywhere(run: SmallRun) -> None:
    served: dict[str, list[int | None]] = {}

    def listen(event: observe.Event) -> None:
        if event.name.startswith("coordinator."):
            served[event.name] = run.served

    with observe.listening(listen):
        report = run.sync()
    for name in ("construct.after", "staged.after", "mark_opened.after", "open_apply.before"):
        assert served[f"coordinator.{name}"] == [0, 0, 0], name
    for name in ("open_apply.after", "finish.before", "commit.after"):
        assert served[f"coordinator.{name}"] == [None, None, None], name
    assert served["coordinator.fold_in.before"] == [1, 1, 1], "the record decides, not the trackers"
    assert encodings(run, report.manifest) == {Encoding.DELTA16}
    committed(run, report)


def test_requests_leases_and_audits_go_on_while_a_payload_is_on_its_way(run: SmallRun) -> None:
    receiver, inner = run.receivers["runtime-0"], run.fleet.store.get
    under_way, arrive = threading.Event(), threading.Event()

    def slow(key: str) -> bytes:
        if "/payload/1-" in key and threading.current_thread().name == "pump":
            under_way.set()
            assert arrive.wait(30)
        return inner(key)

    run.fleet.store.get = slow  # type: ignore[method-assign]
    pump = Pump(receiver.agent, idle_s=0.001)
    seen: list[object] = []

    def meanwhile() -> None:
        assert under_way.wait(30)
        seen.extend([receiver.served(), run.renew(), receiver.agent.audit().version])
        arrive.set()

    stage = receiver.agent.stage

    def staging(*args: Any, **named: Any) -> None:
        stage(*args, **named)
        pump._begin(named["attempt"])

    receiver.agent.stage = staging  # type: ignore[method-assign]
    run.before["runtime-0", "staged"] = meanwhile
    report = run.sync()
    pump.close()
    assert seen == [0, [], 0]
    assert report.num_attempts == 1
    committed(run, report)


def test_who_takes_itself_out_while_it_stages_shuts_no_other_gate(run: SmallRun) -> None:
    held, served = run.receivers["runtime-0"].agent._held, list[list[int | None]]()

    def lost_once() -> None:
        if not served:
            with held.lock:
                held.condemn("a flipped bit")
            served.append(run.served)

    def listen(event: observe.Event) -> None:
        if event.name == "coordinator.mark_opened.before":
            served.append(run.served)

    run.before["runtime-0", "staged"] = lost_once
    with observe.listening(listen):
        report = run.sync()
    assert served == [[None, 0, 0], [None, 0, 0]], "opened once, when it had been restored under its gate"
    assert report.num_attempts == 2
    assert encodings(run, report.manifest) == {Encoding.DELTA16}, "nobody's storage was touched before"
    committed(run, report)


def test_an_engine_that_does_not_answer_is_condemned_all_the_same(run: SmallRun) -> None:
    held = run.receivers["runtime-0"].agent._held
    held._gate.close = fail(Unreachable("the engine does not answer"))  # type: ignore[method-assign]
    with held.lock:
        assert held.condemn("a flipped bit") == held.num_standings
    assert held.lost.is_set()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_every_receiver_tells_how_long_its_gate_was_shut(tmp_path: Path, mode: str) -> None:
    run = SmallRun(tmp_path, replace(CONFIG, mode=mode)).begin()
    order: list[str] = []
    with observe.listening(lambda event: order.append(event.name)):
        report = run.sync()
    assert sorted(report.pauses) == sorted(NAMES)
    assert all(0 < seconds < 60 for seconds in report.pauses.values())
    assert order.count("receiver.pause") == len(NAMES)
    shut, made = order.index("receiver.open_apply.before"), order.index("owner.close.after")
    assert (shut < made) == (mode == "sync"), "whether construction lies inside the pause"


@pytest.mark.parametrize("victim", NAMES[:1])
def test_a_retry_names_what_is_stored_and_nothing_is_sent_or_fetched_again(
    run: SmallRun, victim: str
) -> None:
    run.before[victim, "staged"] = fail(AttemptFailed("for once"))
    fetched: list[str] = []
    inner = run.fleet.store.get
    run.fleet.store.get = lambda key: (fetched.append(key), inner(key))[1]  # type: ignore[method-assign,func-returns-value]
    report = run.sync()
    refs = report.manifest.payloads
    first = {ref.attempt for ref in refs}
    assert report.num_attempts == 2
    assert len(first) == 1
    assert None not in first
    payloads = [key for key in uploads(run) if f"/{report.record.attempt}/" not in key]
    assert len(payloads) == len(uploads(run)) == len(refs), "uploaded once, by the first attempt"
    assert all(fetched.count(key) <= len(NAMES) for key in payloads), "each receiver fetched each once"
    assert encodings(run, report.manifest) == {Encoding.DELTA16}
    committed(run, report)


def test_collection_leaves_what_the_committed_manifest_names(run: SmallRun) -> None:
    parent = run.state.record.attempt
    run.before["runtime-1", "staged"] = fail(AttemptFailed("for once"))
    report = run.sync()
    named = named_earlier([report.manifest])
    assert named == set(uploads(run))
    store = run.fleet.store
    gone = collect_between(store, run.run_id, parent, report.record.attempt, named=named)
    assert gone, "closed lists of the first attempt go"
    committed(run, report)
    assert run.sync().record.version == 2


def test_an_upload_that_was_cut_short_goes_on_where_it_stopped(run: SmallRun) -> None:
    inner, num = run.fleet.store.put, 0

    def put(key: str, data: bytes) -> None:
        nonlocal num
        num += "/payload/" in key
        if "/payload/" in key and num == 2:
            raise StoreError("full, for once")
        inner(key, data)

    run.fleet.store.put = put  # type: ignore[method-assign]
    report = run.sync()
    assert report.num_attempts == 2
    attempts = {report.manifest.attempt_of(ref) for ref in report.manifest.payloads}
    assert len(attempts) == 2, "one of the first attempt, the rest of the second"
    assert len(uploads(run)) == len(report.manifest.payloads)
    committed(run, report)


def test_a_receiver_that_starts_in_between_fetches_what_is_named(run: SmallRun) -> None:
    def die() -> None:
        run.restart("runtime-2")
        raise AttemptFailed("it died")

    run.before["runtime-2", "staged"] = die
    report = run.sync()
    assert {ref.attempt for ref in report.manifest.payloads} != {None}
    run.renew()
    committed(run, report)


def test_payloads_of_another_candidate_are_never_named(run: SmallRun) -> None:
    def restart_trainer() -> None:
        run.step += 1
        run.fleet.write(words(run.step))
        for owner in run.fleet.owners:
            owner.withdraw()
            owner.present(run.step)
        raise AttemptFailed("the weights are others")

    run.before["runtime-0", "staged"] = restart_trainer
    with pytest.raises(AttemptFailed, match=r"not presented|candidate of step"):
        run.sync()
    report = run.service.transition(run.step, 0)
    assert {ref.attempt for ref in report.manifest.payloads} == {None}
    committed(run, report)


@pytest.mark.parametrize("method", ["open_apply", "finish"])
def test_once_the_mark_is_set_only_overwrites_are_sent(run: SmallRun, method: str) -> None:
    run.before["runtime-1", method] = fail(AttemptFailed("for once"))
    report = run.sync()
    assert {ref.attempt for ref in report.manifest.payloads} == {None}
    assert encodings(run, report.manifest) == {Encoding.OVERWRITE}
    committed(run, report)


def test_without_room_payloads_are_applied_as_they_arrive_in_the_end(run: SmallRun) -> None:
    agent = run.receivers["runtime-0"].agent
    agent._stager._area = StagingArea(Room(1, 0))
    report = run.sync()
    assert report.num_attempts == STAGED_TRIES + 1
    assert encodings(run, report.manifest) == {Encoding.DELTA16}, "nobody's storage was torn"
    committed(run, report)
    agent._stager._area = StagingArea(Room())
    assert run.sync().num_attempts == 1, "and the next one is staged again"


def test_a_disk_that_was_full_costs_one_attempt_and_no_download(run: SmallRun, tmp_path: Path) -> None:
    (tmp_path / "spill").write_bytes(b"in the way of the folder")
    agent = run.receivers["runtime-0"].agent
    agent._stager._area = StagingArea(Room(0, 1 << 20, tmp_path / "spill"))
    run.before["owner-0", "collect"] = lambda: None
    run.before["runtime-0", "stop_and_wait"] = lambda: (tmp_path / "spill").unlink()
    report = run.sync()
    assert report.num_attempts == 2
    committed(run, report)
    assert [path.name for path in (tmp_path / "spill").iterdir()] == []


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sync, async"):
        SmallRun(tmp_path, replace(CONFIG, mode="later"))


def test_replaced_and_unknown_attempts_are_refused(run: SmallRun) -> None:
    run.sync()
    agent, record = run.receivers["runtime-0"].agent, run.state.record
    old = record.attempt
    with pytest.raises(AttemptFailed, match="is not staged here"):
        agent.staged(old, record.manifest)
    later = replace(old, number=old.number + 1, version=old.version + 1)
    with pytest.raises(Conflict, match="fence it first"):
        agent.stage(later, record, later.number)
    agent.fence(later, record)
    agent.stage(later, record, later.number)
    agent.stage(later, record, later.number)
    with pytest.raises(AttemptFailed, match="attempt is"):
        agent.staged(later, record.manifest)
    assert run.receivers["runtime-0"].served() == 1, "nothing of it shut the gate"


def test_a_late_copy_of_the_last_settling_leaves_what_is_staged(run: SmallRun) -> None:
    before = run.sync().record
    agent = run.receivers["runtime-0"].agent
    run.before["runtime-0", "staged"] = lambda: agent.settle(before)
    report = run.sync()
    assert report.num_attempts == 1
    committed(run, report)
