"""Pruning and collecting beside readers: each order in which they may meet."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from dcr.errors import IntegrityError, StoreError
from dcr.model import Encoding, Manifest, PayloadRef, to_json
from dcr.refit.collecting import Collector
from dcr.refit.site import Site
from dcr.testing.history import History, random_tensors, small_catalogue
from dcr.transport.archive import StoreArchive
from dcr.transport.chain import chain, newest_first
from dcr.transport.compose import composed
from dcr.transport.keys import anchored_key, reader_key
from dcr.transport.memory import MemoryStore
from dcr.transport.reading import LEASE_S, Lease, live_leases, reading
from dcr.transport.replay import replay
from dcr.transport.retention import Pruner
from dcr_recipes.commands.archived import ArchiveCheck
from dcr_recipes.commands.findings import Verdict

NOW = 1_000_000.0


class Interposed(MemoryStore):
    """Calls ``then`` once, after a listing of readers' leases and before anybody reads them."""

    then: Callable[[], None] | None = None

    def list(self, prefix: str) -> list[str]:  # type: ignore[explicit-override]  # typing.override: 3.12
        found = super().list(prefix)
        if "/reader/" in prefix and self.then is not None:
            then, self.then = self.then, None
            then()
        return found


def grown(num_versions: int, *, anchors: tuple[int, ...] = ()) -> History:
    made = History(Interposed(), small_catalogue(), audits=True, num_owners=1)
    rng = np.random.default_rng(5)
    for version in range(num_versions):
        made.commit(random_tensors(made.catalogue, rng), encoding=Encoding.XOR)
        if version in anchors:
            made.anchor(version)
    return made


def pruner(made: History) -> Pruner:
    return Pruner(made.store, made.archive, made.catalogue, lambda: NOW)


def read(made: History, manifests: list[Manifest]) -> None:
    for manifest in manifests:
        for ref in manifest.payloads:
            made.archive.get_payload(manifest, ref)


def test_a_lease_that_is_renewed_while_leases_are_listed_counts() -> None:
    store, now = Interposed(), [NOW]
    with reading(store, "run", 3, clock=lambda: now[0]) as keep:
        now[0] += LEASE_S * 0.6
        store.then = keep
        assert [lease.version for lease in live_leases(store, "run", clock=lambda: now[0])] == [3]


def test_a_listing_that_never_agrees_with_the_store_is_told() -> None:
    """It may hide a lease as well as it shows one that is gone: nothing may be removed on its word."""
    store = Interposed()
    store.list = lambda prefix: [f"{prefix}gone"]  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="look again later"):
        live_leases(store, "run")


def test_a_reader_that_began_before_the_anchor_of_its_version_goes_on() -> None:
    made = grown(7, anchors=(3,))
    record = made.records[-1]
    made.store.put(reader_key(made.catalogue.run, "reader"), to_json(Lease(6, int(NOW + 60))))
    begun = chain(made.archive, record)
    made.anchor(6)
    assert pruner(made).prune(record, 1) == []
    read(made, begun)
    made.store.delete(reader_key(made.catalogue.run, "reader"))
    assert pruner(made).prune(record, 1)
    read(made, chain(made.archive, record))


def test_a_resumed_run_leaves_announced_versions_to_their_readers(tmp_path: Path) -> None:
    made = grown(9, anchors=(3, 6))
    made.archive.put_object("catalogue", to_json(made.catalogue))
    made.store.put(reader_key(made.catalogue.run, "reader"), to_json(Lease(4, int(NOW + 60))))
    begun = chain(made.archive, made.records[4])
    assert pruner(made).prune(made.records[-1], 2) == []
    assert made.archive.retained().floor == 6
    assert Collector(Site(made.catalogue.run, made.store, tmp_path)).at_start(made.records[-1]) == 0
    read(made, begun)
    made.store.delete(reader_key(made.catalogue.run, "reader"))
    assert pruner(made).prune(made.records[-1], 2)


def test_who_reads_a_version_may_look_into_it_again_after_it_was_announced() -> None:
    """As an export does, file by file, and catching up, which rebuilds some tensors on its way."""
    made = grown(9, anchors=(3, 6))
    clock = lambda: 0.0  # noqa: E731 -- before every lease's end
    one = Pruner(made.store, made.archive, made.catalogue, clock)
    archive = made.archive  # of one process
    with archive.reading(4):
        assert one.prune(made.records[-1], 2) == []
        assert archive.retained().floor == 6
        rebuilt = replay(archive, made.records[4], made.catalogue)
        assert all(np.array_equal(rebuilt[name], bits) for name, bits in made.tensors[4].items())
    with pytest.raises(IntegrityError, match="version 4 is not kept; the oldest is 6"):
        replay(archive, made.records[4], made.catalogue)


@pytest.mark.parametrize("at", [8, 6, 5, 4])
def test_a_history_that_is_listed_while_it_is_pruned_is_not_broken(at: int) -> None:
    made = grown(9, anchors=(3, 6))
    listed = newest_first(made.archive, made.records[-1])
    found = [next(listed).attempt.version for _ in range(9 - at)]
    pruner(made).prune(made.records[-1], 2)
    found += [manifest.attempt.version for manifest in listed]
    assert found == [8, 7, *range(6, min(at, 6) - 1, -1)]


def test_a_kept_manifest_that_is_missing_is_told_whatever_is_pruned() -> None:
    made = grown(9, anchors=(3, 6))
    listed = newest_first(made.archive, made.records[-1])
    next(listed)
    pruner(made).prune(made.records[-1], 2)
    made.store.delete(f"{made.catalogue.run}/manifest/{made.records[6].manifest}")
    with pytest.raises(IntegrityError, match=r"version 6: manifest .* is missing"):
        list(listed)


class Counting(StoreArchive):
    """Notes in which order a reader keeps its lease and fetches payloads."""

    seen: list[str]

    @contextmanager
    def reading(self, version: int) -> Iterator[Callable[[], None]]:  # type: ignore[explicit-override]
        with super().reading(version):
            yield lambda: self.seen.append("keep")

    def get_payload(self, manifest: Manifest, ref: PayloadRef) -> bytes:  # type: ignore[explicit-override]
        self.seen.append("payload")
        return super().get_payload(manifest, ref)


def test_a_lease_is_kept_from_payload_to_payload_of_an_anchor_too() -> None:
    """One version may take longer to read than a lease lasts."""
    made = grown(5, anchors=(3,))
    archive = Counting(made.store, made.catalogue.run)
    archive.seen = []
    replay(archive, made.records[-1], made.catalogue)
    assert archive.seen.count("payload") > 2
    assert archive.seen == ["keep", "payload"] * archive.seen.count("payload")
    archive.seen.clear()
    names = [spec.name for spec in made.catalogue.tensors]
    composed(archive, made.manifests[2:], made.catalogue, names, lambda: archive.seen.append("keep"))
    assert archive.seen == ["keep", "payload"] * archive.seen.count("payload")


def test_planes_of_an_entry_that_is_damaged_are_not_removed(tmp_path: Path) -> None:
    made = grown(9, anchors=(3, 6))
    pruner(made).prune(made.records[-1], 2)
    made.archive.put_object("catalogue", to_json(made.catalogue))
    entry = anchored_key(made.catalogue.run, made.records[6].attempt)
    whole = made.store.get(entry)
    made.store.delete(entry)
    made.store.put(entry, b"{")
    Collector(Site(made.catalogue.run, made.store, tmp_path)).at_start(made.records[-1])
    made.store.delete(entry)
    made.store.put(entry, whole)  # an operator writes it anew: everything that it names is still there
    assert replay(made.archive, made.records[-1], made.catalogue).keys() == made.tensors[-1].keys()


def test_a_check_of_the_archive_holds_pruning_off_until_it_ends() -> None:
    made = grown(9, anchors=(3, 6))
    one = Pruner(made.store, made.archive, made.catalogue, lambda: 0.0)
    removed: list[str] = []

    def advance(what: str, done: int, total: int) -> None:
        removed.extend(one.prune(made.records[-1], 2))

    found = ArchiveCheck(made.archive, made.records[-1], made.catalogue, advance).run()
    assert not [finding for finding in found if finding.verdict is not Verdict.PROVEN]
    assert removed == []
    assert one.prune(made.records[-1], 2)
