"""``dcr.refit.Refit`` as a training loop may call it: one rank, real shards, a coordinator over HTTP."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dcr.commit.context import TransitionReport
from dcr.commit.control_plane.claimed import ClaimedPlane
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.remote import HttpCaller
from dcr.config import CommitConfig, RefitConfig
from dcr.errors import ConfigError, Conflict
from dcr.refit import COORDINATOR, Refit, Site, compose_coordinator
from dcr.refit.asking import Asker
from dcr.refit.desk import Desk, Term
from dcr.transport.directory import DirectoryStore
from dcr.transport.rpc import serve
from dcr_adapters.fsdp import FsdpShards

CONFIG = RefitConfig(
    commit=CommitConfig(collect_deadline_s=10.0, max_attempts=2, retry_pause_s=0.0, min_receivers=0)
)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    (tmp_path / "store").mkdir()
    made = Site("ab" * 16, DirectoryStore(tmp_path / "store"), tmp_path / "endpoints")
    caller = HttpCaller(made.peers)  # a coordinator's ends with its process, so here the test closes it
    monkeypatch.setattr("dcr.refit.coordinator.HttpCaller", lambda _: caller)
    plane = ClaimedPlane(MemoryControlPlane())
    service = compose_coordinator(CONFIG.commit, made, plane, world=1, receivers=())
    desk = Desk(COORDINATOR)
    desk.begin(Term(made.run, service, plane))
    with serve(desk.handlers()) as server:
        made.peers.publish(COORDINATOR, server.url, "i")
        yield made
    caller.close()


@pytest.fixture
def model() -> torch.nn.Module:
    return torch.nn.Linear(3, 5)


def composed(site: Site, model: torch.nn.Module, folder: Path, served: str = "bfloat16") -> Refit:
    source = FsdpShards(model, served_dtype=served)
    return Refit.compose(CONFIG, site, source=source, rank=0, trackers=folder / "trackers")


def test_sync_comes_after_open(site: Site, model: torch.nn.Module, tmp_path: Path) -> None:
    refit = composed(site, model, tmp_path)
    for call in (lambda: refit.sync(1), refit.last, refit.audit):
        with pytest.raises(ConfigError, match=r"Refit\.open comes first"):
            call()
    refit.close()


def test_open_is_called_once(site: Site, model: torch.nn.Module, tmp_path: Path) -> None:
    refit = composed(site, model, tmp_path)
    refit.open(resume=False)
    for resume in (False, True):
        with pytest.raises(ConfigError, match="called before"):
            refit.open(resume=resume)
    assert refit.sync(1).record.version == 1
    refit.close()


def test_another_candidate_is_refused_while_one_is_under_way(
    site: Site, model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refit = composed(site, model, tmp_path)
    refit.open(resume=False)
    ask, entered, refused = Asker.transition, threading.Event(), threading.Event()

    def slow(self: Asker, step: int, parent_version: int, patience_s: float) -> TransitionReport:
        entered.set()
        assert refused.wait(10)
        return ask(self, step, parent_version, patience_s)

    monkeypatch.setattr(Asker, "transition", slow)
    first = threading.Thread(target=refit.sync, args=(1,))
    first.start()
    assert entered.wait(10)
    with pytest.raises(Conflict, match="step 1 is still presented"):
        refit.sync(2)
    refused.set()
    first.join()
    assert refit.record.step == 1
    refit.close()


def test_a_candidate_of_another_dtype_is_refused_before_anything_is_touched(
    site: Site, model: torch.nn.Module, tmp_path: Path
) -> None:
    first = composed(site, model, tmp_path)
    first.open(resume=False)
    first.close()
    before = {path: path.read_bytes() for path in (tmp_path / "trackers").iterdir()}
    other = composed(site, model, tmp_path, served="float32")
    with pytest.raises(ConfigError, match=r"other names, shapes or dtypes.*start a new run"):
        other.open(resume=True)
    assert {path: path.read_bytes() for path in (tmp_path / "trackers").iterdir()} == before
    other.close()
    again = composed(site, model, tmp_path)
    assert again.open(resume=True).version == 0
    again.close()
