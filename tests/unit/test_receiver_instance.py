"""An agent over several ranks: transitions, and storage that the runtime rebuilds between them."""

import pytest
from tests.unit.parallel_sites import ParallelSite
from tests.unit.receiver_sites import opened, tau

from dcr.errors import AttemptFailed, IntegrityError, UnsupportedPath
from dcr.model import PathClass, ReceiverState


@pytest.fixture
def site() -> ParallelSite:
    made = ParallelSite()
    made.join()
    return made


def test_a_transition_is_exact_on_every_rank(site: ParallelSite) -> None:
    site.refit(1, 2)
    site.refit(2, 3)
    assert site.holds(2)
    assert site.served() == 2
    assert site.agent.audit().version == 2


def test_a_rebuilt_storage_is_learned_and_proven_at_the_fence(site: ParallelSite) -> None:
    """Sleep and wake with the same weights: no attempt is lost, nothing is restored."""
    site.ranks[1].rebuild()
    site.refit(1, 2)
    assert site.holds(1)
    assert [rank.num_prewarms for rank in site.ranks] == [1, 2]
    assert site.gate.log[-1] == ("open", 1, True)


def test_a_storage_rebuilt_with_other_bits_is_restored(site: ParallelSite) -> None:
    """The base-value gate: what the new map reads is not the committed version, on one replica only."""
    site.ranks[1].rebuild()
    site.flip(1, "norm.weight", 5)
    report = site.agent.fence(tau(1, 2), site.records[0])
    assert report.state is ReceiverState.EMPTY
    assert site.served() is None
    site.agent.restore(tau(1, 2), site.records[0])
    assert site.holds(0)


def test_a_rebuilt_storage_that_takes_less_is_told_at_the_fence(site: ParallelSite) -> None:
    """The coordinator sees the classes that hold now; a refusal stops the transition."""
    site.ranks[0].rebuild()
    site.ranks[0].refusals["q.weight"] = "its backend re-blocked it; choose another"
    with pytest.raises(UnsupportedPath, match=r"q.weight.*re-blocked"):
        site.agent.fence(tau(1, 2), site.records[0])
    assert site.agent.report().state is ReceiverState.EMPTY


def test_rebuilt_between_fence_and_opening(site: ParallelSite) -> None:
    """Equal paths: learned and opened. Other paths: the attempt's classes are wrong, so it fails."""
    site.agent.fence(tau(1, 2), site.records[0])
    site.ranks[0].rebuild()
    site.agent.open_apply(tau(1, 2), site.records[0])
    site.agent.fence(tau(1, 3), site.records[0])
    site.agent.restore(tau(1, 3), site.records[0])
    site.ranks[0].rebuild()
    site.ranks[0].classes["q.weight"] = PathClass.OVERWRITE
    with pytest.raises(AttemptFailed, match="paths now differ"):
        site.agent.open_apply(tau(1, 3), site.records[0])
    report = site.agent.fence(tau(1, 4), site.records[0])
    assert report.state is ReceiverState.CLEAN
    assert report.classification["q.weight"] is PathClass.OVERWRITE


def test_torn_storage_that_is_rebuilt_is_restored(site: ParallelSite) -> None:
    """In mixed(v) nothing can prove a new map (P8): EMPTY at the next fence, or at the opening."""
    attempt, _ = opened(site, 1, 2)
    site.agent.pump()
    site.ranks[1].rebuild()
    assert site.agent.fence(tau(1, 3), site.records[0]).state is ReceiverState.EMPTY
    site.agent.restore(tau(1, 3), site.records[0])
    assert site.holds(0)
    opened(site, 1, 4)
    site.agent.pump()
    site.agent.fence(tau(1, 5), site.records[0])
    site.ranks[1].rebuild()
    with pytest.raises(AttemptFailed, match="empty"):
        site.agent.open_apply(tau(1, 5), site.records[0])
    assert attempt < tau(1, 3)


def test_torn_storage_keeps_its_map_where_nothing_moved(site: ParallelSite) -> None:
    """An overwrite retry on mixed(v) repairs every rank, without learning again."""
    opened(site, 1, 2)
    site.ranks[1].fails["apply"] = AttemptFailed("q.weight: a write went astray")
    site.agent.pump()
    del site.ranks[1].fails["apply"]
    retry = tau(1, 3)
    assert site.agent.fence(retry, site.records[0]).state is ReceiverState.MIXED
    site.agent.open_apply(retry, site.records[0])
    refs = site.publish(retry, site.items(1, overwrite=True))
    site.agent.finish(retry, site.manifest(retry, refs, overwrite_only=True))
    site.agent.settle(site.commit(retry, refs, overwrite_only=True))
    assert site.holds(1)
    assert site.ranks[1].num_prewarms == 1


def test_an_audit_on_demand_learns_a_rebuilt_storage_first(site: ParallelSite) -> None:
    site.ranks[0].rebuild()
    assert site.agent.audit().version == 0
    site.ranks[0].rebuild()
    site.flip(0, "q.weight", 3)
    with pytest.raises(AttemptFailed, match="empty"):
        site.agent.audit()
    assert site.agent.lost.is_set()


def test_differing_replicas_are_an_integrity_error(site: ParallelSite) -> None:
    site.flip(1, "k.weight", 3)
    with pytest.raises(
        IntegrityError, match=r"k.weight: its copies on ranks \[1\] differ from that on rank 0"
    ):
        site.agent.audit()
