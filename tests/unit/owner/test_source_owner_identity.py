"""The candidate's identity: bits that moved are refused, whatever the version counters say (DESIGN P5)."""

import numpy as np
import pytest
from tests.unit.owner_fleets import ONE, TWO, XOR, equal

from dcr import observe
from dcr.errors import (
    AttemptFailed,
    IntegrityError,
    Unreachable,
)
from dcr.testing.toy_fleet import ToyFleet
from dcr.testing.toy_trainer import Tensors, mutate


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
