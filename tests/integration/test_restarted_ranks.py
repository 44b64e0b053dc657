"""A trainer of two ranks that restarts while a transition of its former life is still under way (P1, P10)."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from dcr import observe
from dcr.commit.control_plane.claimed import ClaimedPlane
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.remote import HttpCaller
from dcr.config import CommitConfig, RefitConfig
from dcr.errors import RefitError
from dcr.model import CommitRecord
from dcr.refit import COORDINATOR, Refit, Site, compose_coordinator
from dcr.refit.desk import Desk, Term
from dcr.testing.deltas import changed_version, random_version
from dcr.testing.toy_runtime import TINY, catalogue
from dcr.testing.toy_trainer import Placement, ToySource, ToyTensor
from dcr.transport.directory import DirectoryStore
from dcr.transport.rpc import serve

WORLD = 2
CONFIG = RefitConfig(
    commit=CommitConfig(collect_deadline_s=20.0, max_attempts=2, retry_pause_s=0.0, min_receivers=0)
)
RNG = np.random.default_rng(7)
FIRST = random_version(catalogue(tiny=True), RNG)
SECOND = changed_version(catalogue(tiny=True), FIRST, RNG, 0.2)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "store").mkdir()
    made = Site("ab" * 16, DirectoryStore(tmp_path / "store"), tmp_path / "endpoints")
    caller = HttpCaller(made.peers)
    monkeypatch.setattr("dcr.refit.coordinator.HttpCaller", lambda _: caller)
    plane = ClaimedPlane(MemoryControlPlane())
    desk = Desk(COORDINATOR)
    desk.begin(
        Term(made.run, compose_coordinator(CONFIG.commit, made, plane, world=WORLD, receivers=()), plane)
    )
    with serve(desk.handlers()) as server:
        made.peers.publish(COORDINATOR, server.url, "i")
        yield made
    caller.close()


class Life:
    """Both ranks of one life of the trainer."""

    def __init__(self, site: Site, folder: Path, pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        tensors = [ToyTensor(spec, Placement.ROWS) for spec in TINY]
        self.sources = [ToySource(rank, WORLD, tensors, FIRST) for rank in range(WORLD)]
        self.refits = [
            Refit.compose(CONFIG, site, source=source, rank=rank, trackers=folder / f"trackers-{rank}")
            for rank, source in enumerate(self.sources)
        ]

    def open(self, rank: int, *, resume: bool) -> Future[CommitRecord]:
        return self.pool.submit(self.refits[rank].open, resume=resume)

    def close(self) -> None:
        for refit in self.refits:
            refit.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_no_rank_opens_with_a_version_that_is_just_being_replaced(site: Site, tmp_path: Path) -> None:
    """Rank 1 is back before rank 0, while the coordinator is about to commit what they sent before."""
    reached, released = threading.Event(), threading.Event()

    def hold(event: observe.Event) -> None:
        if event.name == "coordinator.commit.before":
            reached.set()
            assert released.wait(20)

    with ThreadPoolExecutor(8) as pool:
        old = Life(site, tmp_path, pool)
        opened = [old.open(rank, resume=False) for rank in range(WORLD)]
        assert [future.result().version for future in opened] == [0, 0]
        for source in old.sources:
            source.set_all(SECOND)
        with observe.listening(hold):
            lost = [pool.submit(refit.sync, 1) for refit in old.refits]
            assert reached.wait(20)
            old.close()
            new = Life(site, tmp_path, pool)
            late = new.open(1, resume=True)
            until(lambda: site.peers.find("owner-1") is not None)
            time.sleep(0.2)  # it would have looked at the record by now
            assert not late.done()
            first = new.open(0, resume=True)
            released.set()
            records = [first.result(), late.result()]
        assert [record.version for record in records] == [1, 1]
        assert records[0] == records[1]
        for future in lost:
            with pytest.raises(RefitError):
                future.result()
        new.close()
