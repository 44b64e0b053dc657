"""The background audit: what it finds, how it names it, and that it never cries wolf."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.unit.parallel_sites import ParallelSite
from tests.unit.receiver_sites import opened, tau

from dcr.model import ReceiverState
from dcr.receiver.rank import PartDigests
from dcr.receiver.writer import Slice
from dcr.testing.toy_rank import ToyRank


@pytest.fixture
def site() -> ParallelSite:
    made = ParallelSite()
    made.join()
    return made


@pytest.mark.parametrize(
    ("rank", "name", "index", "copy"),
    [
        (0, "q.weight", 7, 0),
        (1, "q.weight", 143, 0),
        (1, "norm.weight", 0, 0),
        (0, "expert.1.weight", 20, 1),
        (1, "mixer.in.weight", 12 * 12 + 5, 0),
        (0, "embed.weight", 1, 0),
        (1, "scale", 0, 0),
    ],
)
def test_one_flipped_bit_is_found_within_one_pass_named_and_repaired(
    site: ParallelSite, rank: int, name: str, index: int, copy: int
) -> None:
    site.full_pass()
    assert site.served() == 0
    site.flip(rank, name, index, copy)
    site.full_pass()
    assert site.served() is None
    assert site.agent.report().state is ReceiverState.EMPTY
    assert site.agent.lost.is_set()
    finding = site.agent.diagnose().audit.finding
    assert finding is not None
    assert (finding.tensor, finding.version, finding.ranges) == (name, 0, ((index, index + 1),))
    assert f"rank {rank} at elements {index}..{index}" in finding.detail
    site.join()
    assert site.holds(0)
    assert site.served() == 0
    assert not site.agent.lost.is_set()
    site.full_pass()
    assert site.served() == 0


def test_many_wrong_elements_stay_a_few_ranges(site: ParallelSite) -> None:
    for index in range(0, 72, 2):
        site.flip(0, "q.weight", index)
    site.full_pass()
    finding = site.agent.diagnose().audit.finding
    assert finding is not None
    assert len(finding.ranges) <= 8
    inside = {i for start, stop in finding.ranges for i in range(start, stop)}
    assert inside >= set(range(0, 72, 2))
    assert max(inside) < 80


def test_a_tensor_is_out_even_if_the_archive_cannot_say_where(site: ParallelSite) -> None:
    site.flip(0, "q.weight", 7)
    for key in list(site.store.list("")):
        if "/payload/" in key:
            site.store.delete(key)
    site.full_pass()
    finding = site.agent.diagnose().audit.finding
    assert finding is not None
    assert (finding.tensor, finding.ranges) == ("q.weight", ())
    assert site.served() is None


def test_a_pass_reads_everything_in_slices_of_bounded_size(site: ParallelSite) -> None:
    total = sum(spec.num_bytes for spec in site.catalogue.tensors)
    read = []
    while site.agent.diagnose().audit.num_passes < 1:
        read.append(site.agent.examine())
    assert sum(read) == total == site.agent.diagnose().audit.num_bytes
    assert max(read) <= 64
    assert site.agent.diagnose().audit.seconds > 0


def test_nothing_is_read_unless_clean(site: ParallelSite) -> None:
    opened(site, 1, 2)
    before = len(site.ranks[0].log)
    assert site.agent.examine() == 0
    assert "scan" not in site.ranks[0].log[before:]


def test_a_tensor_begun_under_another_version_is_dropped_and_then_read_at_once(site: ParallelSite) -> None:
    site.agent.examine()  # the first slice of the first tensor
    site.refit(1, 2)
    assert site.agent.examine() == 10 * 12 * 2
    site.full_pass()
    assert site.agent.diagnose().audit.num_dropped == 1
    assert site.served() == 1


@pytest.mark.parametrize("name", ["norm.weight", "embed.weight"])
def test_a_bit_that_reads_right_the_second_time_takes_nobody_out(
    site: ParallelSite, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A glitch on the way to the digest is no damage to what is served."""
    real, left = ToyRank.scan, {name}

    def glitch(rank: ToyRank, slices: Sequence[Slice]) -> list[PartDigests]:
        sizes = {name: bits.size for name, bits in site.versions[0].items()}
        last = [piece for piece in slices if piece.stop == sizes.get(piece.name)]
        wrong = [piece for piece in last if piece.name in left and rank.rank == 1]
        for piece in wrong:
            left.remove(piece.name)
            site.flip(1, piece.name, piece.stop - 1)
        try:
            return real(rank, slices)
        finally:
            for piece in wrong:
                site.flip(1, piece.name, piece.stop - 1)

    monkeypatch.setattr(ToyRank, "scan", glitch)
    site.full_pass()
    assert not left
    assert site.served() == 0


def test_a_rebuilt_storage_is_learned_by_the_scan(site: ParallelSite) -> None:
    site.ranks[1].rebuild()
    site.full_pass()
    assert site.ranks[1].num_prewarms == 2
    assert site.served() == 0


STEPS = ("scan", "scan", "refit", "tear", "retry", "kill", "rebuild")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(STEPS), max_size=30), st.sampled_from([32, 100, 10**6]))
def test_refits_kills_and_rebuilds_give_no_false_alarm(steps: list[str], slice_bytes: int) -> None:
    """Whatever comes in between two slices, nothing is found where nothing is wrong."""
    site = ParallelSite(slice_bytes=slice_bytes)
    site.join()
    for number, step in enumerate(steps, start=2):
        version = len(site.records)
        if step == "scan":
            event(f"scanned {site.agent.examine() > 0}")
        elif step == "refit" and version < len(site.versions) and site.served() is not None:
            site.refit(version, number)
        elif step == "tear" and version < len(site.versions) and site.served() is not None:
            opened(site, version, number)
            site.agent.pump()
        elif step == "retry" and site.agent.report().state is ReceiverState.MIXED:
            retry = tau(version, number)
            site.agent.fence(retry, site.records[-1])
            site.agent.restore(retry, site.records[-1])
            site.agent.settle(site.records[-1])
        elif step == "kill":
            site.agent = site.start()
            site.agent.fence(tau(version - 1, number), site.records[-1])
            site.agent.restore(tau(version - 1, number), site.records[-1])
            site.agent.settle(site.records[-1])
        elif step == "rebuild":
            site.ranks[number % 2].rebuild()
    assert site.agent.diagnose().audit.finding is None
    assert not site.agent.lost.is_set()


def test_each_element_is_read_once_a_pass(site: ParallelSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the port is told: names and ranges, within the tensors."""
    seen: list[Slice] = []
    real = ToyRank.scan

    def recorded(rank: ToyRank, slices: Sequence[Slice]) -> list[PartDigests]:
        seen.extend(slices if rank is site.ranks[0] else ())
        return real(rank, slices)

    monkeypatch.setattr(ToyRank, "scan", recorded)
    site.full_pass()
    for spec in site.catalogue.tensors:
        covered = np.zeros(spec.num_elements, dtype=int)
        for piece in seen:
            if piece.name == spec.name:
                covered[piece.start : piece.stop] += 1
        assert (covered == 1).all(), spec.name
