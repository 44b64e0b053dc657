"""The receiver's states, fences and refusals over the toy runtime and a store in memory (P6-P8, P15, P16)."""

import threading
import time
from dataclasses import replace

import pytest
from tests.unit.receiver_sites import Site, opened, tau

from dcr import observe
from dcr.errors import AttemptFailed, ConfigError, Conflict, IntegrityError
from dcr.model import (
    GENESIS,
    ReceiverState,
    to_json,
)
from dcr.receiver import rules
from dcr.testing.deltas import audit_of
from dcr.testing.native_loader_suite import storage_bytes


@pytest.fixture
def site() -> Site:
    """Serving version 0."""
    made = Site()
    made.join()
    return made


def test_starts_empty_and_shut() -> None:
    site = Site()
    report = site.agent.report()
    assert (report.state, report.version, report.opened) == (ReceiverState.EMPTY, -1, None)
    assert site.served() is None


def test_restore_then_settle_serves(site: Site) -> None:
    assert site.holds(0)
    assert site.agent.report().state is ReceiverState.CLEAN
    assert site.served() == 0


def test_a_whole_transition(site: Site) -> None:
    attempt = tau(1, 2)
    site.agent.fence(attempt, site.records[0])
    assert site.served() == 0  # a fence alone stops nobody
    site.agent.open_apply(attempt, site.records[0])
    assert site.served() is None
    report = site.agent.report()
    assert (report.state, report.version, report.opened) == (ReceiverState.MIXED, 0, attempt)
    refs = site.publish(attempt, site.items(1))
    assert site.agent.pump() == len(refs)
    assert site.agent.pump() == 0
    manifest = site.manifest(attempt, refs)
    ack = site.agent.finish(attempt, manifest)
    assert (ack.num_payloads, ack.num_items, ack.num_skipped) == (len(refs), len(refs), 0)
    assert site.agent.finish(attempt, manifest) is ack
    assert site.agent.report().state is ReceiverState.COMPLETE
    assert site.served() is None
    record = site.commit(attempt, refs)
    for _ in range(2):
        assert site.agent.settle(record).version == 1
    assert site.gate.log[-1] == ("open", 1, True)
    assert site.runtime.num_synchronized >= 2
    assert site.holds(1)


def test_finish_fetches_what_no_pump_did(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.agent.finish(attempt, site.manifest(attempt, refs))
    assert site.holds(1)


def test_no_change_keeps_the_caches(site: Site) -> None:
    attempt = tau(1, 2)
    site.versions[1] = site.versions[0]
    site.agent.fence(attempt, site.records[0])
    site.agent.open_apply(attempt, site.records[0])
    site.agent.finish(attempt, site.manifest(attempt, []))
    site.agent.settle(site.commit(attempt, []))
    assert site.gate.log[-1] == ("open", 1, False)


def test_a_lower_fence_conflicts_and_an_equal_one_does_not(site: Site) -> None:
    site.agent.fence(tau(1, 5), site.records[0])
    assert site.agent.fence(tau(1, 5), site.records[0]).fenced == tau(1, 5)
    with pytest.raises(Conflict, match="replaced by 1-5"):
        site.agent.fence(tau(1, 4), site.records[0])


@pytest.mark.parametrize("number", [3, 5])
def test_only_the_fenced_attempt_is_obeyed(site: Site, number: int) -> None:
    site.agent.fence(tau(1, 4), site.records[0])
    other = tau(1, number)
    with pytest.raises(Conflict):
        site.agent.open_apply(other, site.records[0])
    with pytest.raises(Conflict):
        site.agent.restore(other, site.records[0])
    with pytest.raises(Conflict):
        site.agent.finish(other, "0" * 32)


def test_payloads_of_a_replaced_attempt_are_never_applied(site: Site) -> None:
    opened(site, 1, 2)
    before = storage_bytes(site.runtime)
    site.agent.fence(tau(1, 3), site.records[0])
    assert site.agent.pump() == 0
    assert storage_bytes(site.runtime) == before


def test_fence_settles_complete_by_the_record(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.agent.finish(attempt, site.manifest(attempt, refs))
    report = site.agent.fence(tau(1, 3), site.records[0])  # not committed
    assert (report.state, report.version) == (ReceiverState.MIXED, 0)
    assert site.served() is None


def test_fence_settles_complete_that_was_committed(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.agent.finish(attempt, site.manifest(attempt, refs))
    record = site.commit(attempt, refs)
    report = site.agent.fence(tau(2, 3), record)
    assert (report.state, report.version, report.opened) == (ReceiverState.CLEAN, 1, None)
    assert site.served() is None
    site.agent.settle(record)
    assert site.served() == 1


def test_a_late_copy_of_a_fence_undoes_nothing(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.agent.finish(attempt, site.manifest(attempt, refs))
    before = site.records[0]
    assert site.agent.fence(attempt, before).state is ReceiverState.COMPLETE
    site.agent.settle(site.commit(attempt, refs))
    report = site.agent.fence(attempt, before)  # the record of its time is older than what is held
    assert (report.state, report.version) == (ReceiverState.CLEAN, 1)
    assert site.served() == 1


def test_late_copies_of_a_restore_and_its_settling_bring_nothing_back(site: Site) -> None:
    """Both come again when the attempt that they were for is committed and served."""
    attempt, refs = opened(site, 1, 2)
    site.agent.finish(attempt, site.manifest(attempt, refs))
    site.agent.settle(site.commit(attempt, refs))
    with pytest.raises(Conflict, match="version 1 is clean here"):
        site.agent.restore(attempt, site.records[0])
    assert site.served() == 1
    with pytest.raises(Conflict, match="cannot settle on version 0"):
        site.agent.settle(site.records[0])
    assert site.holds(1)
    assert site.served() == 1


def test_a_torn_receiver_that_missed_the_commit_is_worthless(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    record = site.commit(attempt, refs)  # without this one
    assert site.agent.fence(tau(2, 3), record).state is ReceiverState.EMPTY
    site.agent.restore(tau(2, 3), record)
    site.agent.settle(record)
    assert site.holds(1)


def test_a_clean_receiver_that_lags_stops_serving(site: Site) -> None:
    refs = site.publish(tau(1, 2), site.items(1))
    record = site.commit(tau(1, 2), refs)
    assert site.agent.fence(tau(2, 3), record).state is ReceiverState.EMPTY
    assert site.served() is None


def test_retry_takes_overwrites_only(site: Site) -> None:
    first, refs = opened(site, 1, 2)
    site.agent.pump()
    site.agent.stop_and_wait(first)
    second = tau(1, 3)
    site.agent.fence(second, site.records[0])
    site.agent.open_apply(second, site.records[0])
    refs = site.publish(second, site.items(1, overwrite=True))
    with pytest.raises(AttemptFailed, match="overwrites only"):
        site.agent.finish(second, site.manifest(second, refs))
    site.agent.finish(second, site.manifest(second, refs, overwrite_only=True))
    assert site.holds(1)


def test_masks_on_a_retry_fail_it_untouched(site: Site) -> None:
    opened(site, 1, 2)
    site.agent.pump()
    second = tau(1, 3)
    site.agent.fence(second, site.records[0])
    site.agent.open_apply(second, site.records[0])
    before = storage_bytes(site.runtime)
    refs = site.publish(second, site.items(1))
    assert site.agent.pump() == 0
    assert storage_bytes(site.runtime) == before
    with pytest.raises(AttemptFailed, match=r"(?i)xor onto storage"):
        site.agent.finish(second, site.manifest(second, refs, overwrite_only=True))


@pytest.mark.parametrize("end", ["stopped", "replaced"])
def test_an_attempt_that_ends_while_requests_drain_tears_nothing(
    site: Site, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = tau(1, 2)
    site.agent.fence(attempt, site.records[0])
    shut, fences = site.gate.close, site.agent._fences

    def close(_: object) -> None:
        shut()
        fences.stop(attempt) if end == "stopped" else fences.obey(tau(1, 3))

    monkeypatch.setattr(type(site.gate), "close", close)
    with pytest.raises(AttemptFailed if end == "stopped" else Conflict):
        site.agent.open_apply(attempt, site.records[0])
    assert site.agent.report().state is ReceiverState.CLEAN
    assert site.served() is None, "the gate waits for the next attempt, or for the end of the transition"


def test_open_apply_is_idempotent_and_needs_the_right_base(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.agent.pump()
    site.agent.open_apply(attempt, site.records[0])
    site.agent.finish(attempt, site.manifest(attempt, refs))
    site.agent.open_apply(attempt, site.records[0])  # a late duplicate
    assert site.agent.report().state is ReceiverState.COMPLETE
    empty = Site()
    empty.agent.fence(tau(1, 2), empty.records[0])
    with pytest.raises(AttemptFailed, match="restore it first"):
        empty.agent.open_apply(tau(1, 2), empty.records[0])


def test_settle_needs_the_record_of_what_is_held(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    with pytest.raises(Conflict, match="mixed"):
        site.agent.settle(site.records[0])
    site.agent.finish(attempt, site.manifest(attempt, refs))
    with pytest.raises(Conflict, match="complete"):
        site.agent.settle(site.records[0])
    other = replace(site.commit(attempt, refs), attempt=tau(1, 9))
    with pytest.raises(Conflict):
        site.agent.settle(other)
    assert site.served() is None


def test_stop_and_wait_ends_an_attempt_for_good(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.agent.stop_and_wait(attempt)
    assert site.agent.pump() == 0
    with pytest.raises(AttemptFailed, match="was stopped"):
        site.agent.finish(attempt, site.manifest(attempt, refs))
    assert site.served() is None
    site.agent.fence(tau(1, 3), site.records[0])
    site.agent.stop_and_wait(attempt)  # replaced: nothing to wait for
    site.agent.open_apply(tau(1, 3), site.records[0])


def test_an_attempt_stopped_before_it_was_opened_cannot_beopened(site: Site) -> None:
    site.agent.fence(tau(1, 2), site.records[0])
    site.agent.stop_and_wait(tau(1, 2))
    with pytest.raises(AttemptFailed, match="was stopped"):
        site.agent.open_apply(tau(1, 2), site.records[0])


def test_fence_waits_for_the_item_under_way_and_no_longer(site: Site) -> None:
    opened(site, 1, 2)
    inside, go_on, seen = threading.Event(), threading.Event(), []

    def listen(event: observe.Event) -> None:
        seen.append(event.name)
        if event.name == "receiver.item.before" and not inside.is_set():
            inside.set()
            assert go_on.wait(10)

    with observe.listening(listen):
        pump = threading.Thread(target=site.agent.pump)
        pump.start()
        assert inside.wait(10)
        fence = threading.Thread(target=site.agent.fence, args=(tau(1, 3), site.records[0]))
        fence.start()
        fence.join(0.05)
        assert fence.is_alive()
        go_on.set()
        fence.join(10)
        pump.join(10)
    assert not fence.is_alive()
    assert seen.count("receiver.item.before") == 1


def test_a_record_of_another_run_or_catalogue_is_refused(site: Site) -> None:
    for wrong in (replace(site.records[0], run="e" * 32), replace(site.records[0], catalogue="f" * 32)):
        with pytest.raises(ConfigError, match="needs a new run"):
            site.agent.fence(tau(1, 2), wrong)


def test_restore_that_cannot_be_proven_leaves_it_empty() -> None:
    site = Site()
    forged = replace(
        site.records[0],
        audit=site.archive.put_object("audit", to_json(audit_of(site.catalogue, site.versions[1]))),
    )
    site.agent.fence(tau(0, 1), forged)
    with pytest.raises(IntegrityError):
        site.agent.restore(tau(0, 1), forged)
    assert site.agent.report().state is ReceiverState.EMPTY
    assert site.served() is None


def test_restore_replays_the_chain() -> None:
    site = Site()
    for version in (1, 2):
        site.commit(tau(version, version), site.publish(tau(version, version), site.items(version)))
    site.join()
    assert site.holds(2)
    assert site.served() == 2


def test_a_restore_that_is_fenced_reads_no_further_payload() -> None:
    site = Site()
    site.agent.fence(tau(0, 1), site.records[0])
    fences: list[threading.Thread] = []
    read: list[str] = []

    def listen(event: observe.Event) -> None:
        if event.name == "replay.payload":
            read.append(event.name)
            if not fences:
                fences.append(threading.Thread(target=site.agent.fence, args=(tau(1, 2), site.records[0])))
                fences[0].start()
                while not site.agent._fences.is_cancelled(tau(0, 1)):
                    time.sleep(0.001)

    with observe.listening(listen), pytest.raises(AttemptFailed, match="restoring was stopped between"):
        site.agent.restore(tau(0, 1), site.records[0])
    fences[0].join(10)
    assert not fences[0].is_alive()
    assert len(read) == 1
    site.agent.restore(tau(1, 2), site.records[0])
    assert site.holds(0)


def test_only_clean_may_serve_or_take_masks() -> None:
    for state in ReceiverState:
        standing = rules.Standing(state, 0, GENESIS)
        assert rules.may_open_gate(standing) == (state is ReceiverState.CLEAN)
        assert rules.may_xor(standing) == (state is ReceiverState.CLEAN)
