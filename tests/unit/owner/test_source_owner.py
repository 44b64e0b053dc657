"""The owner's endpoint: a transition, retries, the trainer's side of it (DESIGN P5-P8, P12, P15)."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.owner_fleets import ONE, TENSORS, TWO, XOR, equal, fleet_at_step_1

from dcr import observe
from dcr.errors import (
    AttemptFailed,
    ConfigError,
    Conflict,
    Unreachable,
    UnsupportedPath,
)
from dcr.model import Encoding, PathClass, from_json, to_json
from dcr.model.messages import OwnerReport
from dcr.source import AffineTask
from dcr.testing.toy_fleet import ToyFleet
from dcr.testing.toy_trainer import Tensors, ToySource

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
