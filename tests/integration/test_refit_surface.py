"""``dcr.refit.Refit`` as a training loop may call it: one rank, real shards, a coordinator over HTTP."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dcr import observe
from dcr.commit.context import TransitionReport
from dcr.commit.control_plane.claimed import ClaimedPlane
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.remote import HttpCaller
from dcr.config import ChainConfig, CommitConfig, RefitConfig
from dcr.errors import ConfigError, Conflict, UnsupportedPath
from dcr.refit import COORDINATOR, Refit, Site, compose_coordinator
from dcr.refit.asking import Asker
from dcr.refit.desk import Desk, Term
from dcr.refit.export import export_version
from dcr.refit.versions import record_at
from dcr.transport.directory import DirectoryStore
from dcr.transport.rpc import serve
from dcr_adapters.fsdp import FsdpShards
from dcr_recipes.details import StepDetails

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


def composed(
    site: Site, model: torch.nn.Module, folder: Path, served: str = "bfloat16", config: RefitConfig = CONFIG
) -> Refit:
    source = FsdpShards(model, served_dtype=served)
    return Refit.compose(config, site, source=source, rank=0, trackers=folder / "trackers")


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


def test_weights_that_are_not_ready_become_no_first_version(
    site: Site, model: torch.nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: FsdpShards) -> str:
        raise UnsupportedPath("gathered only in the next forward pass")

    refit = composed(site, model, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(FsdpShards, "counters", refuse)
        with pytest.raises(UnsupportedPath, match="next forward pass"):
            refit.open(resume=False)
    assert not (tmp_path / "trackers" / "trackers.json").exists()
    refit.close()
    again = composed(site, model, tmp_path)
    assert again.open(resume=False).version == 0
    again.close()


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


@pytest.mark.parametrize(("trackers", "is_replayed"), [("mapped", False), ("memory", True)])
def test_a_restarted_trainer_proves_its_files_or_rebuilds_its_memory(
    site: Site, tmp_path: Path, trackers: str, is_replayed: bool
) -> None:
    model = torch.nn.Linear(3, 5)
    config = replace(CONFIG, trackers=trackers)
    first = composed(site, model, tmp_path, config=config)
    first.open(resume=False)
    torch.nn.init.zeros_(model.weight)
    assert first.sync(1).num_changed == model.weight.numel()
    first.close()
    assert (tmp_path / "trackers" / "trackers.bin").exists() is not is_replayed
    heard: list[str] = []
    again = composed(site, model, tmp_path, config=config)
    with observe.listening(lambda event: heard.append(event.name)):
        assert again.open(resume=True).version == 1
    assert ("replay.payload" in heard) is is_replayed
    model.weight.data[0] = 1.0
    assert again.sync(2).num_changed == 3
    again.close()


def test_an_unknown_choice_of_trackers_is_refused(site: Site, model: torch.nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trackers: 'disk' must be one of mapped, memory"):
        composed(site, model, tmp_path, config=replace(CONFIG, trackers="disk"))


def test_kept_versions_are_the_trainers_own_and_lost_trackers_come_from_an_anchor(
    site: Site, tmp_path: Path
) -> None:
    """Every kept version's export is the dense BF16 one of its step; a pruned one is refused by name."""
    model = torch.nn.Linear(3, 5)
    config = replace(CONFIG, chain=ChainConfig(anchor_every=2, anchor_share=0, keep_versions=2))
    refit = composed(site, model, tmp_path, config=config)
    record = refit.open(resume=False)
    dense = [_dense(model)]
    for step in range(1, 7):
        model.weight.data[step % 5] += step
        record = refit.sync(step).record
        dense.append(_dense(model))
    refit.close()
    catalogue = site.catalogue(record)
    for version, wanted in enumerate(dense):
        if version < 4:  # the newest anchor that versions 5 and 6 can be rebuilt from is that of 4
            with pytest.raises(ConfigError, match=f"version {version} is not kept; kept are 4 to 6"):
                record_at(site.archive, record, catalogue, version)
            continue
        out, then = tmp_path / f"out-{version}", record_at(site.archive, record, catalogue, version)
        export_version(site.archive, then, catalogue, out=out, file_bytes=1 << 20)
        found = load_file(out / "model.safetensors")
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    for path in (tmp_path / "trackers").glob("trackers.*"):
        path.unlink()
    again = composed(site, model, tmp_path, config=config)
    model.bias.data += 1
    assert again.open(resume=True).version == 6
    assert again.sync(7).num_changed == 5
    again.close()


def test_of_payloads_that_an_anchor_replaced_at_once_nothing_is_told(site: Site, tmp_path: Path) -> None:
    """Only the newest version is kept: where it has an anchor, its own delta is pruned within ``sync``."""
    model = torch.nn.Linear(3, 5)
    config = replace(CONFIG, chain=ChainConfig(anchor_every=2, anchor_share=0, keep_versions=1))
    refit = composed(site, model, tmp_path, config=config)
    refit.open(resume=False)
    details, told = StepDetails(tmp_path / "change_rates.jsonl", site.archive), []
    for step in range(1, 5):
        model.weight.data[step] += step
        record = refit.sync(step).record
        told.append(bool(details.columns(step, record.version, record.manifest, timed=True)))
    refit.close()
    assert told == [True, False, True, False]
    rates = (tmp_path / "change_rates.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in rates] == [1, 3]


def _dense(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().to(torch.bfloat16).clone() for name, value in model.named_parameters()}
