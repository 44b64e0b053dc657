"""The owner's endpoint: fences, retries, candidate identity (DESIGN P5-P8, P12, P15)."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.owner_fleets import ONE, TENSORS, THREE, TWO, XOR, equal, fleet_at_step_1, new_bits, old_bits

from dcr import observe
from dcr.errors import (
    AttemptFailed,
    ConfigError,
    Conflict,
    IntegrityError,
    RefitError,
    Unreachable,
    UnsupportedPath,
)
from dcr.model import Encoding, PathClass, from_json, to_json
from dcr.model.messages import OwnerReport
from dcr.source import AffineTask
from dcr.testing.toy_fleet import ToyFleet
from dcr.testing.toy_trainer import Tensors, ToySource, mutate


@pytest.fixture
def old() -> Tensors:
    return old_bits()


@pytest.fixture
def new(old: Tensors) -> Tensors:
    return new_bits(old)


@pytest.fixture
def fleet(tmp_path: Path, old: Tensors, new: Tensors) -> ToyFleet:
    return fleet_at_step_1(tmp_path, old, new)


# ---- a transition ----


def test_transition_releases_the_candidate_and_wakes_the_trainer(fleet: ToyFleet, new: Tensors) -> None:
    closes = fleet.construct(ONE, XOR)
    record = fleet.commit(ONE, closes, step=1)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(fleet.owners[0].wait_committed, 1, timeout_s=30)
        reports = [owner.fold_in(ONE, record) for owner in fleet.owners]
        assert waiting.result() == record
    assert [(report.baseline_version, report.step) for report in reports] == [(1, None), (1, None)]
    assert equal(fleet.tracked(), new)
    assert fleet.owners[0].fold_in(ONE, record).baseline_version == 1  # a lost answer is asked for again
    assert fleet.owners[0].collect(1).close == closes[0]  # by a coordinator that did not see step 1 end


def test_report_crosses_the_wire(fleet: ToyFleet) -> None:
    fleet.construct(ONE, XOR)
    report = fleet.owners[0].collect(1)
    assert report.step == 1
    assert report.fenced == ONE
    assert report.close is not None
    assert from_json(OwnerReport, to_json(report)) == report


@pytest.mark.parametrize("overwrite_only", [False, True])
def test_a_dense_attempt_sends_every_owned_element_and_the_same_candidate(
    fleet: ToyFleet, old: Tensors, new: Tensors, overwrite_only: bool
) -> None:
    """P12: whatever a receiver holds, it holds the candidate afterwards; also shards that did not change."""
    new = {**new, "norm": old["norm"]}
    fleet.write(new)
    sparse = fleet.construct(ONE, XOR)
    record = fleet.records[0]
    for owner in fleet.owners:
        owner.fence(TWO, record)
    dense = [owner.construct(TWO, record, overwrite_only, XOR, dense=True) for owner in fleet.owners]
    assert [close.candidate for close in dense] == [close.candidate for close in sparse]
    assert [close.num_changed for close in dense] == [close.num_changed for close in sparse]
    sent: Tensors = {name: np.zeros_like(bits.reshape(-1)) for name, bits in new.items()}
    times = {name: np.zeros(bits.size, np.int64) for name, bits in new.items()}
    for item in fleet.items(dense):
        assert item.encoding is Encoding.OVERWRITE
        sent[item.name][item.locations] = item.values
        times[item.name][item.locations] += 1
    for name, bits in new.items():
        assert np.array_equal(sent[name], bits.reshape(-1)), name
        assert (times[name] == 1).all(), f"{name}: an element is missing or sent twice"


def test_construct_is_idempotent(fleet: ToyFleet) -> None:
    first = fleet.construct(ONE, XOR)
    assert [owner.construct(ONE, fleet.records[0], False, XOR) for owner in fleet.owners] == first


def test_anchor_is_idempotent_and_only_for_version_0(fleet: ToyFleet) -> None:
    assert fleet.owners[0].anchor() == fleet.owners[0].anchor()
    closes = fleet.construct(ONE, XOR)
    fleet.owners[0].fold_in(ONE, fleet.commit(ONE, closes, step=1))
    with pytest.raises(Conflict, match="baseline is at version 1"):
        fleet.owners[0].anchor()


def test_nothing_changed_closes_an_empty_list(fleet: ToyFleet, old: Tensors) -> None:
    fleet.write(old)
    closes = fleet.construct(ONE, XOR)
    assert [(close.payloads, close.num_changed) for close in closes] == [((), 0), ((), 0)]
    record = fleet.commit(ONE, closes, step=1)
    assert [owner.fold_in(ONE, record).baseline_version for owner in fleet.owners] == [1, 1]
    assert fleet.restart(0).collect(None).baseline_version == 1


def test_marks_follow_the_architecture_page(fleet: ToyFleet) -> None:
    seen: set[str] = set()
    with observe.listening(lambda event: seen.add(event.name)):
        closes = fleet.construct(ONE, XOR)
        fleet.owners[0].fold_in(ONE, fleet.commit(ONE, closes, step=1))
    points = ("owner.task", "owner.publish", "owner.close", "owner.fold_in.task")
    wanted = {f"{name}.{when}" for name in points for when in ("before", "after")}
    assert wanted | {"owner.compare", "owner.project", "owner.encode", "owner.send"} <= seen


# ---- representation ----


def test_items_follow_the_classification(fleet: ToyFleet) -> None:
    paths = {**XOR, "norm": PathClass.SKIP, "head": PathClass.OVERWRITE}
    del paths["bias"]
    items = fleet.items(fleet.construct(ONE, paths))
    assert {item.name: item.encoding for item in items} == {
        "embed": Encoding.DELTA16,
        "head": Encoding.OVERWRITE,
        "norm": Encoding.OVERWRITE,  # skipped by all, yet the archive must be able to rebuild it
        "bias": Encoding.OVERWRITE,  # absent from the classification
        "proj": Encoding.DELTA16,
    }
    embed = [item for item in items if item.name == "embed"]
    head = [item for item in items if item.name == "head"]
    for one, other in zip(embed, head, strict=True):
        assert one.locations.tolist() == other.locations.tolist()
        assert one.target_digest != other.target_digest


def test_refused_path_publishes_nothing(fleet: ToyFleet) -> None:
    fleet.owners[0].fence(ONE, fleet.records[0])
    before = fleet.store.list("")
    with pytest.raises(UnsupportedPath, match=r"cannot take \['head'\]"):
        fleet.owners[0].construct(ONE, fleet.records[0], False, {**XOR, "head": PathClass.REFUSED})
    assert fleet.store.list("") == before


def test_candidate_of_another_dtype_is_refused_before_anything_is_published(fleet: ToyFleet) -> None:
    source, record = fleet.sources[0], fleet.records[0]
    source.set_shard("embed", np.zeros(60, np.uint32))
    fleet.owners[0].fence(ONE, record)
    before = fleet.store.list("")
    with pytest.raises(UnsupportedPath, match="'embed' holds uint32, its task declares bfloat16"):
        fleet.owners[0].construct(ONE, record, False, XOR)
    assert fleet.store.list("") == before


def test_weights_given_as_tensors_lead_to_the_same_payloads(
    tmp_path: Path, old: Tensors, new: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer on another device gives tensors of the served dtype; here they lie on the host."""
    read = ToySource.read

    def as_tensor(source: ToySource, task: AffineTask) -> torch.Tensor:
        bits = read(source, task).copy()
        return torch.from_numpy(bits.view(f"i{bits.itemsize}")).view(getattr(torch, task.dtype))

    digests = []
    for folder, patched in (("arrays", read), ("tensors", as_tensor)):
        monkeypatch.setattr(ToySource, "read", patched)
        (tmp_path / folder).mkdir()
        fleet = fleet_at_step_1(tmp_path / folder, old, new)
        digests.append([close.payloads for close in fleet.construct(ONE, XOR)])
        closes = fleet.construct(TWO, XOR, overwrite_only=True)
        record = fleet.commit(TWO, closes, step=1)
        assert [owner.fold_in(TWO, record).baseline_version for owner in fleet.owners] == [1, 1]
        assert equal(fleet.tracked(), new)
    assert digests[0] == digests[1]


def test_a_tensor_of_another_dtype_is_refused(fleet: ToyFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ToySource, "read", lambda *_: torch.zeros(60, dtype=torch.float16))
    fleet.owners[0].fence(ONE, fleet.records[0])
    with pytest.raises(ConfigError, match=r"must be uint\d+ \[\d+\], got torch.float16 \[60\]"):
        fleet.owners[0].construct(ONE, fleet.records[0], False, XOR)


# ---- fences ----


def test_fence_orders_attempts(fleet: ToyFleet) -> None:
    owner, record = fleet.owners[0], fleet.records[0]
    assert owner.fence(TWO, record).fenced == TWO
    assert owner.fence(TWO, record).fenced == TWO
    with pytest.raises(Conflict, match="attempt 1-1 was replaced by 1-2"):
        owner.fence(ONE, record)
    with pytest.raises(Conflict, match="replaced"):
        owner.construct(ONE, record, False, XOR)
    with pytest.raises(AttemptFailed, match="never fenced"):
        owner.construct(THREE, record, False, XOR)


def test_stopped_attempt_does_not_begin(fleet: ToyFleet) -> None:
    owner, record = fleet.owners[0], fleet.records[0]
    owner.fence(TWO, record)
    owner.stop_and_wait(ONE)  # replaced: returns at once and stops nothing else
    owner.construct(TWO, record, False, XOR)
    owner.stop_and_wait(TWO)
    owner.stop_and_wait(TWO)
    with pytest.raises(AttemptFailed, match="was stopped"):
        owner.construct(TWO, record, False, XOR)


def test_stop_reaches_an_attempt_whose_fence_is_late(fleet: ToyFleet) -> None:
    owner, record = fleet.owners[0], fleet.records[0]
    owner.stop_and_wait(TWO)
    owner.fence(TWO, record)
    with pytest.raises(AttemptFailed, match="was stopped"):
        owner.construct(TWO, record, False, XOR)
    owner.fence(THREE, record)
    assert owner.construct(THREE, record, True, XOR).payloads


class Paused:
    """Holds a construction at a mark, in its own thread, until ``go``."""

    def __init__(self, fleet: ToyFleet, mark: str) -> None:
        self.order: list[str] = []
        self._inside, self._go = threading.Event(), threading.Event()
        self._mark, self._owner, self._record = mark, fleet.owners[0], fleet.records[0]
        self._pool = ThreadPoolExecutor()

    def _listen(self, event: observe.Event) -> None:
        if event.name == self._mark and not self._inside.is_set():
            self._inside.set()
            assert self._go.wait(30)

    def _construct(self) -> object:
        try:
            return self._owner.construct(ONE, self._record, False, XOR)
        finally:
            self.order.append("construct ended")

    def run(self, interrupt: Callable[[], object]) -> tuple[Future[object], Future[object]]:
        def other() -> object:
            result = interrupt()
            self.order.append("interrupt returned")
            return result

        with self._pool, observe.listening(self._listen):
            construct = self._pool.submit(self._construct)
            assert self._inside.wait(30)
            answer = self._pool.submit(other)
            running = self._owner._turn._running
            assert running is not None
            for _ in range(5000):  # until the interrupt has reached the agent; without it the order is wrong
                if running.cancelled:
                    break
                threading.Event().wait(0.001)
            self._go.set()
            assert running.cancelled
        return construct, answer


@pytest.mark.parametrize("mark", ["owner.task.after", "owner.publish.before", "owner.publish.after"])
@pytest.mark.parametrize("interrupt", ["fence", "stop_and_wait", "withdraw"])
def test_interrupt_returns_only_when_construction_has_ended(
    fleet: ToyFleet, mark: str, interrupt: str
) -> None:
    owner, record = fleet.owners[0], fleet.records[0]
    owner.fence(ONE, record)
    paused = Paused(fleet, mark)
    construct, answer = paused.run(
        {
            "fence": lambda: owner.fence(TWO, record),
            "stop_and_wait": lambda: owner.stop_and_wait(ONE),
            "withdraw": owner.withdraw,
        }[interrupt]
    )
    assert isinstance(construct.exception(), RefitError)
    assert answer.exception() is None
    assert paused.order == ["construct ended", "interrupt returned"]
    assert not any("/close/1-1/" in key for key in fleet.store.list(""))


def test_fence_gives_up_on_work_that_does_not_end(tmp_path: Path, old: Tensors) -> None:
    fleet = ToyFleet(tmp_path, TENSORS, old, deadline_s=0.0)
    record = fleet.genesis()
    owner = fleet.owners[0]
    owner.present(1)
    owner.fence(ONE, record)

    def listener(event: observe.Event) -> None:
        if event.name == "owner.task.before":  # in the constructing thread: it cannot end meanwhile
            with pytest.raises(AttemptFailed, match=r"attempt 1-1 did not end within 0.0 s"):
                owner.fence(TWO, record)

    with observe.listening(listener), pytest.raises(AttemptFailed, match="stopped while"):
        owner.construct(ONE, record, False, XOR)
    assert owner.fence(TWO, record).fenced == TWO


# ---- candidate identity (P5) ----


def test_retry_after_a_silent_write_is_refused(fleet: ToyFleet, new: Tensors) -> None:
    fleet.construct(ONE, XOR)
    source, record = fleet.sources[0], fleet.records[0]
    task = source.tasks()[0]
    source.set_shard(task.key, source.read(task) ^ np.uint16(1), silently=True)
    before = len(fleet.store.list("ab" * 16 + "/payload/1-2/"))
    fleet.owners[0].fence(TWO, record)
    with pytest.raises(
        IntegrityError, match=r"'embed' of step 1 .* weights were written during the transition"
    ):
        fleet.owners[0].construct(TWO, record, True, XOR)
    assert len(fleet.store.list("ab" * 16 + "/payload/1-2/")) == before


def test_write_between_an_unfinished_attempt_and_its_retry_is_refused(fleet: ToyFleet, old: Tensors) -> None:
    owner, source, record = fleet.owners[0], fleet.sources[0], fleet.records[0]
    owner.fence(ONE, record)

    def fail(event: observe.Event) -> None:
        if event.name == "owner.publish.after":
            raise AttemptFailed("injected")

    with observe.listening(fail), pytest.raises(AttemptFailed, match="injected"):
        owner.construct(ONE, record, False, XOR)
    source.set("embed", old["embed"])  # what was published is not even a change any more
    owner.fence(TWO, record)
    with pytest.raises(IntegrityError, match="weights were written"):
        owner.construct(TWO, record, True, XOR)


def test_counters_that_moved_are_only_a_warning(
    fleet: ToyFleet, new: Tensors, caplog: pytest.LogCaptureFixture
) -> None:
    first = fleet.construct(ONE, XOR)
    fleet.write(new)
    retry = fleet.construct(TWO, XOR, overwrite_only=True)
    assert [close.candidate for close in retry] == [close.candidate for close in first]
    assert "version counters moved since step 1" in caplog.text


def test_write_before_fold_in_leaves_trackers_provable(fleet: ToyFleet, new: Tensors, old: Tensors) -> None:
    record = fleet.commit(ONE, fleet.construct(ONE, XOR), step=1)
    fleet.sources[0].set("embed", old["embed"])
    with pytest.raises(IntegrityError, match="weights were written between"):
        fleet.owners[0].fold_in(ONE, record)
    with pytest.raises(Unreachable, match="not committed"):
        fleet.owners[0].wait_committed(1, timeout_s=0)
    assert fleet.restart(0).fence(TWO, record).baseline_version == 1
    fleet.owners[1].fold_in(ONE, record)
    assert equal(fleet.tracked(), new)


def test_seeded_bug_in_the_identity_check_would_be_seen(
    fleet: ToyFleet, old: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fold-in is the second line: without the retry check it still refuses the swapped candidate."""

    def accept(candidate: object, task: object, digests: object) -> None:
        candidate.digests[task.key] = digests  # type: ignore[attr-defined]

    monkeypatch.setattr("dcr.source.convert.require_same_bits", accept)
    first = fleet.construct(ONE, XOR)
    fleet.write(mutate(old, 0.5, np.random.default_rng(9)))
    fleet.construct(TWO, XOR, overwrite_only=True)
    record = fleet.commit(ONE, first, step=1)  # the late commit of the first attempt lands
    with pytest.raises(IntegrityError, match="do not hold what attempt 1-1 committed"):
        fleet.owners[0].fold_in(ONE, record)


# ---- trainer side ----


def test_present_and_withdraw(fleet: ToyFleet) -> None:
    owner = fleet.owners[0]
    owner.present(1)
    with pytest.raises(Conflict, match="step 1 is still presented"):
        owner.present(2)
    owner.withdraw()
    with pytest.raises(AttemptFailed, match="step 1 is not presented"):
        owner.wait_committed(1, timeout_s=0)
    owner.fence(ONE, fleet.records[0])
    with pytest.raises(AttemptFailed, match="presents no candidate"):
        owner.construct(ONE, fleet.records[0], False, XOR)
    owner.present(2)
    assert owner.collect(2).step == 2


def test_candidate_presented_again_is_another_one(fleet: ToyFleet) -> None:
    """Its bits may have changed without moving a counter, and nothing remembers the first ones (P5)."""
    owner = fleet.owners[0]
    before = owner.collect(1)
    owner.present(1)
    assert owner.collect(1).counters == before.counters
    owner.withdraw()
    owner.present(1)
    assert owner.collect(1).counters != before.counters


def test_collect_waits_for_the_step(fleet: ToyFleet) -> None:
    owner = fleet.owners[0]
    owner.withdraw()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(owner.collect, 2)
        owner.present(2)
        assert answer.result().step == 2


def test_collect_has_a_deadline(tmp_path: Path, old: Tensors) -> None:
    fleet = ToyFleet(tmp_path, TENSORS, old, deadline_s=0.0)
    with pytest.raises(Unreachable, match="rank 0 did not present step 4"):
        fleet.owners[0].collect(4)
