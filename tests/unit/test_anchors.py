"""Later anchors: where chains begin, what becomes of damaged ones, who writes them and when."""

import logging
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.run_folders import flip

from dcr import observe
from dcr.config import ChainConfig
from dcr.errors import IntegrityError, StoreError
from dcr.model import CommitRecord, Encoding, Manifest, OwnerClose
from dcr.refit.anchoring import Anchorer
from dcr.refit.site import Site
from dcr.testing.history import History, random_tensors, small_catalogue
from dcr.testing.toy_fleet import apply_items
from dcr.testing.world import World
from dcr.transport import replay as replay_module
from dcr.transport.archive import StoreArchive
from dcr.transport.base import Outlet
from dcr.transport.chain import chain, history
from dcr.transport.compose import catch_up
from dcr.transport.directory import DirectoryStore
from dcr.transport.planes import PlanesOutlet, closed_planes, link_anchor
from dcr.transport.replay import replay

CYCLE = (Encoding.XOR, Encoding.OVERWRITE, Encoding.DELTA16)


def grown(folder: Path, num_versions: int = 8) -> History:
    made = History(DirectoryStore(folder), small_catalogue(), audits=True)
    rng = np.random.default_rng(5)
    for version in range(num_versions):
        made.commit(random_tensors(made.catalogue, rng), encoding=CYCLE[version % 3])
    return made


@contextmanager
def versions_read() -> Iterator[list[int]]:
    seen: list[int] = []

    def listen(event: observe.Event) -> None:
        if event.name == "replay.payload":
            seen.append(int(str(event.fields["version"])))

    with observe.listening(listen):
        yield seen


def rebuilt(made: History, version: int) -> bool:
    found = replay(made.archive, made.records[version], made.catalogue)
    return all(np.array_equal(found[name], bits) for name, bits in made.tensors[version].items())


def test_chains_begin_at_the_newest_anchor_before(tmp_path: Path) -> None:
    made = grown(tmp_path)
    for version in (3, 6):
        made.anchor(version)
    for version, first in ((2, 0), (3, 3), (5, 3), (6, 6), (7, 6)):
        with versions_read() as seen:
            assert rebuilt(made, version)
        assert sorted(set(seen)) == list(range(first, version + 1))
    assert [m.attempt.version for m in history(made.archive, made.records[7])] == list(range(8))
    assert chain(made.archive, made.records[7])[0].is_later_anchor


@pytest.mark.parametrize("what", ["anchor/6-18/0/1", "anchored/6-18", "manifest"])
def test_a_damaged_anchor_is_left_out(tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    made = grown(tmp_path)
    made.anchor(3)
    anchor = made.anchor(6)
    flip(next(tmp_path.glob(f"*/{what}")) if "/" in what else next(tmp_path.glob(f"*/*/{anchor.manifest}")))
    with caplog.at_level(logging.WARNING), versions_read() as seen:
        assert rebuilt(made, 7)
    assert {3, 4, 5} <= set(seen)
    assert "anchor" in caplog.text


def test_what_a_damaged_anchor_gave_is_let_go_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a host that has room for one model runs out of memory when it needs the older anchor."""
    made = grown(tmp_path)
    made.anchor(3)
    flip(next(tmp_path.glob("*/anchor/3-9/0/1")))
    begun: list[weakref.ref[Any]] = []
    alive: list[int] = []
    real = replay_module._apply_anchor

    def noted(archive: StoreArchive, anchor: Manifest, target: Any) -> None:
        alive.append(sum(one() is not None for one in begun))
        begun.extend(weakref.ref(bits) for bits in target.bits.values())
        real(archive, anchor, target)

    monkeypatch.setattr(replay_module, "_apply_anchor", noted)
    assert rebuilt(made, 7)
    assert alive == [0, 0]


def test_a_damaged_delta_after_it_is_named(tmp_path: Path) -> None:
    made = grown(tmp_path)
    made.anchor(3)
    flip(next(tmp_path.glob("*/payload/5-15/0/1")))
    with pytest.raises(IntegrityError, match="version 5: payload 1 of owner 0"):
        rebuilt(made, 7)
    assert rebuilt(made, 4)


def test_composed_deltas_go_across_it(tmp_path: Path) -> None:
    made = grown(tmp_path)
    made.anchor(3)
    held = made.tensors[1]
    passes = catch_up(made.archive, made.records[7], made.catalogue, since=1, names=held)
    held = apply_items([item for items in passes for item in items], held)
    assert all(np.array_equal(held[name], bits) for name, bits in made.tensors[7].items())


def test_planes_of_another_version_are_refused(tmp_path: Path) -> None:
    made = grown(tmp_path)
    made.anchor(3)
    closes = [closed_planes(made.store, made.catalogue.run, made.records[3].attempt, rank) for rank in (0, 1)]
    with pytest.raises(IntegrityError, match="version 4: the planes have the audit table"):
        link_anchor(made.store, made.archive, made.records[4], made.catalogue, closes)


class Owner:
    """Publishes nothing but its list, whose digests are those of ``made``'s version."""

    def __init__(self, made: History, rank: int, fault: type[Exception] | None = None) -> None:
        self._made, self._rank, self._fault = made, rank, fault

    def publish_planes(self, record: CommitRecord, outlet: Outlet) -> OwnerClose:
        if self._fault is not None:
            raise self._fault("no space left on device")
        own = self._made.manifests[record.version].owners[self._rank]
        close = replace(own, payloads=())
        outlet.close(close)
        return close


def anchorers(made: History, folder: Path, config: ChainConfig) -> list[Anchorer]:
    site = Site(made.catalogue.run, made.store, folder)
    ticks = iter(range(1000))
    return [
        Anchorer(
            site, config, made.catalogue, rank=rank, clock=lambda: 20.0 * next(ticks), pause=lambda _: None
        )
        for rank in (0, 1)
    ]


def committed(made: History, folder: Path, config: ChainConfig, versions: range) -> list[int]:
    """Versions that get an anchor while both ranks go through ``versions``, rank 1 first."""
    zero, one = anchorers(made, folder, config)
    found = []
    for version in versions:
        record = made.records[version]
        written = one.after_commit(record, Owner(made, 1)), zero.after_commit(record, Owner(made, 0))
        assert written[0] == written[1]
        found += [version] if written[0] else []
    return found


def test_every_so_many_versions_also_after_a_restart(tmp_path: Path) -> None:
    made = grown(tmp_path)
    config = ChainConfig(anchor_every=3, anchor_share=0)
    assert committed(made, tmp_path, config, range(5)) == [3]
    assert committed(made, tmp_path, config, range(5, 8)) == [6]
    assert [a.attempt.version for a in made.archive.retained().anchors] == [6, 3]


def test_when_the_deltas_outgrow_a_share(tmp_path: Path) -> None:
    made = grown(tmp_path)
    sizes = [manifest.num_bytes for manifest in made.manifests]
    share = (sizes[1] + sizes[2] + 1) / made.catalogue.num_bytes
    assert committed(made, tmp_path, ChainConfig(anchor_share=share), range(4)) == [3]
    assert committed(made, tmp_path, ChainConfig(anchor_share=0), range(4, 8)) == []


def test_a_chain_that_is_found_broken_gets_an_anchor_to_go_on_from(tmp_path: Path) -> None:
    made = grown(tmp_path)
    next(tmp_path.glob(f"*/manifest/{made.records[3].manifest}")).unlink()
    with pytest.raises(IntegrityError, match="version 3: manifest"):
        rebuilt(made, 6)
    assert committed(made, tmp_path, ChainConfig(anchor_every=100, anchor_share=0), range(6, 8)) == [6]
    assert [manifest.attempt.version for manifest in chain(made.archive, made.records[7])] == [6, 7]


def test_a_rank_that_fails_costs_the_anchor_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = grown(tmp_path)
    zero, one = anchorers(made, tmp_path, ChainConfig(anchor_every=2))
    with caplog.at_level(logging.WARNING):
        assert not one.after_commit(made.records[2], Owner(made, 1, StoreError))
        assert not zero.after_commit(made.records[2], Owner(made, 0))
    assert "version 2 gets no anchor: rank 1 has not written its planes in time" in caplog.text
    assert made.archive.retained().anchors == ()
    seen: list[str] = []
    with observe.listening(lambda event: seen.append(event.name)):
        assert one.after_commit(made.records[3], Owner(made, 1))
    assert seen.count(observe.ANCHOR) == 1
    assert zero.after_commit(made.records[3], Owner(made, 0))


def test_the_trackers_are_written_whole_and_a_trainer_that_lost_them_rebuilds(tmp_path: Path) -> None:
    """With the anchor of v0 gone: what the owners wrote is all that there is."""
    world = World(tmp_path / "world")
    world.create()
    for step in (1, 2, 3):
        world.drive(step)
        if step == 2:
            _write_anchor(world)
    for key in world.store.list(f"{world.catalogue.run}/payload/0-0/"):
        world.store.delete(key)
    world.owners.clear()
    for file in tmp_path.glob("world/trackers-*/*"):
        file.unlink()
    world.drive(4)
    assert world.tracker_errors(4) == []
    assert all(world.differing_bits(name, 4) == 0 for name in ("runtime-0", "runtime-1"))


def _write_anchor(world: World) -> None:
    """All ranks at the same time, from the trackers that hold the committed version."""
    record, closes = world.record(), {}
    outlet = PlanesOutlet(world.store, world.catalogue.run)

    def write(name: str) -> None:
        closes[name] = world.owners[name].publish_planes(record, outlet)

    threads = [threading.Thread(target=write, args=(name,)) for name in world.owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    link_anchor(
        world.store, world.archive, record, world.catalogue, [closes[name] for name in sorted(closes)]
    )
    world.owners["owner-0"].publish_planes(record, outlet)  # again: the same bytes


def test_trackers_of_another_version_are_no_anchor(tmp_path: Path) -> None:
    world = World(tmp_path / "world")
    world.create()
    before = world.record()
    world.drive(1)
    with pytest.raises(IntegrityError, match="the trackers are at version 1, the record at 0"):
        world.owners["owner-0"].publish_planes(before, PlanesOutlet(world.store, world.catalogue.run))
