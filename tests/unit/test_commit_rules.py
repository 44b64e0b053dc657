"""The coordinator's decisions, one by one."""

import logging
from dataclasses import replace

import pytest

from dcr.commit.context import Context, Request
from dcr.commit.rules import (
    candidate_of,
    check_acks,
    check_not_ahead,
    check_owners,
    check_parent,
    combine_classes,
    committed_already,
    join_audit,
    join_manifest,
    lagging,
    needs_restore,
    warn_if_unchanged,
)
from dcr.config import CommitConfig
from dcr.errors import AttemptFailed, ConfigError, Conflict, IntegrityError, UnsupportedPath
from dcr.model import (
    GENESIS,
    ActiveAttempt,
    ApplyAck,
    AttemptId,
    AuditDigest,
    CandidateId,
    Catalogue,
    CommitRecord,
    OwnerClose,
    OwnerReport,
    PathClass,
    PayloadRef,
    ReceiverReport,
    ReceiverState,
    TensorSpec,
)

TAU = AttemptId(4, 1)
CANDIDATE = CandidateId(5, ("i0", "i1"), "n")
RECORD = CommitRecord("r" * 32, 0, GENESIS, 1, "w0", None, 0, "cat", "man", "aud")
CATALOGUE = Catalogue(
    "r" * 32, "k" * 32, (TensorSpec("a", (2, 3), "bfloat16", ("b",)), TensorSpec("c", (), "bool"))
)
CONTEXT = Context("r" * 32, 1, ("owner-0", "owner-1"), ("runtime-0",), CATALOGUE, CommitConfig(), lambda: "n")


def close(owner: int, num_changed: int = 1) -> OwnerClose:
    audit = {"a": AuditDigest(2**60 + owner, 3), "b": AuditDigest(2**60, 3)}
    if owner == 0:
        audit["c"] = AuditDigest(5, 1)
    return OwnerClose(TAU, owner, (PayloadRef(owner, 0, "d", 9),), audit, num_changed, 7, "candidate")


def owner(rank: int, **change: object) -> OwnerReport:
    report = OwnerReport(rank, f"i{rank}", 0, TAU, 5, "n", None)
    return replace(report, **change)  # type: ignore[arg-type]


def receiver(
    state: ReceiverState, version: int = 0, classes: dict[str, PathClass] | None = None
) -> ReceiverReport:
    return ReceiverReport("runtime-0", "i", state, version, TAU, None, classes or {})


def test_the_candidate_is_every_ranks_incarnation() -> None:
    first = candidate_of(5, [owner(0), owner(1)])
    assert first.incarnations == ("i0", "i1")
    assert first != candidate_of(5, [owner(0), owner(1, incarnation="new")])
    assert first != candidate_of(5, [owner(0), owner(1, counters="moved")])
    with pytest.raises(AttemptFailed, match=r"owner-1.*step 4"):
        candidate_of(5, [owner(0), owner(1, step=4)])
    with pytest.raises(ConfigError, match="owner-0 says it is rank 1"):
        candidate_of(5, [owner(1), owner(0)])


def test_a_commit_is_recognized_by_the_owners_closed_lists_only() -> None:
    record = replace(RECORD, version=1, attempt=TAU, step=5)
    request = Request(5, 0)
    assert committed_already(request, record, [owner(0), owner(1, close=close(1))])
    assert not committed_already(request, record, [owner(0), owner(1)])
    assert not committed_already(request, replace(record, step=4), [owner(1, close=close(1))])
    assert not committed_already(Request(5, 1), record, [owner(1, close=close(1))])


def test_a_request_onto_another_version_is_refused() -> None:
    check_parent(Request(5, 0), RECORD)
    with pytest.raises(Conflict, match="read the record again"):
        check_parent(Request(5, 1), RECORD)


def test_owners_that_lag_are_named() -> None:
    record = replace(RECORD, version=3)
    for versions, behind in (((3, -1), ["owner-1"]), ((2, 3), ["owner-0"]), ((3, 4), [])):
        reports = [owner(rank, baseline_version=version) for rank, version in enumerate(versions)]
        assert lagging(("owner-0", "owner-1"), reports, record) == behind


def test_trackers_ahead_of_a_record_read_later_are_an_error() -> None:
    check_not_ahead([owner(0, baseline_version=0), owner(1, baseline_version=-1)], RECORD)
    with pytest.raises(IntegrityError, match="owner-1"):
        check_not_ahead([owner(0), owner(1, baseline_version=1)], RECORD)


def test_after_the_fence_the_candidate_must_be_the_prepared_one() -> None:
    active = ActiveAttempt(TAU, candidate_of(5, [owner(0), owner(1)]), opened=True, since=TAU.number)
    check_owners(active, RECORD, [owner(0), owner(1)])
    for change in ({"incarnation": "new"}, {"counters": "moved"}, {"step": None}, {"baseline_version": -1}):
        with pytest.raises(AttemptFailed):
            check_owners(active, RECORD, [owner(0), owner(1, **change)])


@pytest.mark.parametrize(
    ("state", "version", "opened", "expected"),
    [
        (ReceiverState.CLEAN, 0, False, False),
        (ReceiverState.CLEAN, 0, True, False),
        (ReceiverState.MIXED, 0, True, False),
        (ReceiverState.MIXED, 0, False, True),  # of another candidate
        (ReceiverState.MIXED, 1, True, True),
        (ReceiverState.CLEAN, 1, True, True),
        (ReceiverState.EMPTY, -1, True, True),
        (ReceiverState.COMPLETE, -1, True, True),
    ],
)
def test_who_is_restored(state: ReceiverState, version: int, opened: bool, expected: bool) -> None:
    active = ActiveAttempt(TAU, CANDIDATE, opened, since=2)
    report = replace(receiver(state, version), opened=AttemptId(2, 1))
    assert needs_restore(report, 0, active) is expected
    usable = state is ReceiverState.CLEAN and version == 0
    assert needs_restore(report, 0) is not usable, "what serves is clean"


def test_a_receiver_torn_by_an_earlier_candidate_is_restored() -> None:
    """It was no member when the chain of this candidate began: overwrites would leave the other's bits."""
    active = ActiveAttempt(TAU, CANDIDATE, opened=True, since=3)
    for number, expected in ((2, True), (3, False), (4, False)):
        torn = replace(receiver(ReceiverState.MIXED), opened=AttemptId(number, 1))
        assert needs_restore(torn, 0, active) is expected
    assert needs_restore(receiver(ReceiverState.MIXED), 0, active), "it does not say what it opened"


def test_the_most_restrictive_path_wins_and_skip_needs_all() -> None:
    one = receiver(ReceiverState.CLEAN, 0, {"a": PathClass.SKIP, "b": PathClass.SKIP, "c": PathClass.XOR})
    two = receiver(ReceiverState.CLEAN, 0, {"a": PathClass.XOR, "b": PathClass.SKIP})
    combined = combine_classes(CATALOGUE, {"runtime-0": one, "runtime-1": two})
    assert combined == {"a": PathClass.XOR, "b": PathClass.SKIP, "c": PathClass.OVERWRITE}
    refusing = receiver(ReceiverState.CLEAN, 0, {"b": PathClass.REFUSED})
    with pytest.raises(UnsupportedPath, match=r"'b': runtime-1 .*refit=dense"):
        combine_classes(CATALOGUE, {"runtime-0": one, "runtime-1": refusing})


def test_the_manifest_needs_every_owners_list_of_this_attempt() -> None:
    manifest = join_manifest(CONTEXT, TAU, RECORD, [close(0), close(1)], overwrite_only=False)
    assert manifest.parent == (RECORD.attempt, RECORD.manifest)
    assert [(ref.owner, ref.sequence) for ref in manifest.payloads] == [(0, 0), (1, 0)]
    with pytest.raises(AttemptFailed):
        join_manifest(CONTEXT, TAU, RECORD, [close(1), close(0)], overwrite_only=False)
    with pytest.raises(AttemptFailed):
        join_manifest(CONTEXT, AttemptId(5, 1), RECORD, [close(0), close(1)], overwrite_only=False)


def test_the_audit_table_needs_every_element_once() -> None:
    table = join_audit(CATALOGUE, [close(0), close(1)])
    assert table["a"] == AuditDigest((2**61 + 1) % (2**61 - 1), 6)
    assert set(table) == {"a", "b", "c"}
    with pytest.raises(IntegrityError, match="3 of 6"):
        join_audit(CATALOGUE, [close(0)])
    with pytest.raises(IntegrityError, match="9 of 6"):
        join_audit(CATALOGUE, [close(0), close(1), close(1)])
    foreign = replace(close(1), audit=close(1).audit | {"z": AuditDigest(0, 0)})
    with pytest.raises(IntegrityError, match="'z'"):
        join_audit(CATALOGUE, [close(0), foreign])


def test_an_ack_must_be_of_this_manifest() -> None:
    manifest = join_manifest(CONTEXT, TAU, RECORD, [close(0), close(1)], overwrite_only=False)
    ack = ApplyAck("runtime-0", TAU, "digest", 2, 2, 0, 2, 0.0, 0.0)
    check_acks({"runtime-0": ack}, manifest, "digest")
    for other in (
        replace(ack, attempt=GENESIS),
        replace(ack, manifest="another"),
        replace(ack, num_payloads=1),
    ):
        with pytest.raises(AttemptFailed, match="runtime-0"):
            check_acks({"runtime-0": other}, manifest, "digest")


def test_no_change_at_all_is_worth_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    changed = join_manifest(CONTEXT, TAU, RECORD, [close(0, 0), close(1)], overwrite_only=False)
    unchanged = join_manifest(CONTEXT, TAU, RECORD, [close(0, 0), close(1, 0)], overwrite_only=False)
    with caplog.at_level(logging.WARNING):
        warn_if_unchanged(changed)
        assert not caplog.records
        warn_if_unchanged(unchanged)
    assert "changes no value" in caplog.text
