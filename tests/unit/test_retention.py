"""Pruning keeps what the policy and readers need, whatever interrupts it, and leaves nothing else."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dcr.errors import ConfigError, IntegrityError, StoreError
from dcr.model import AttemptId, Encoding, to_json
from dcr.refit.collecting import Collector
from dcr.refit.site import Site
from dcr.refit.versions import record_at
from dcr.testing.history import History, random_tensors, small_catalogue
from dcr.transport.keys import anchor_key, payload_key, reader_key
from dcr.transport.memory import MemoryStore
from dcr.transport.reading import LEASE_S, SKEW_S, Lease, live_leases, reading
from dcr.transport.replay import replay
from dcr.transport.retention import Pruner

CYCLE = (Encoding.XOR, Encoding.OVERWRITE, Encoding.DELTA16)
NOW = 1_000_000.0


class Dying(MemoryStore):
    """Fails for good after ``left`` more changes; None: never."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def put(self, key: str, data: bytes) -> None:  # type: ignore[explicit-override]  # typing.override: 3.12
        self._step()
        super().put(key, data)

    def delete(self, key: str) -> None:  # type: ignore[explicit-override]  # typing.override: 3.12
        self._step()
        super().delete(key)

    def _step(self) -> None:
        if self.left == 0:
            raise StoreError("the process died")
        if self.left is not None:
            self.left -= 1


def grown(num_versions: int = 9, *, anchors: tuple[int, ...] = (3, 6), still: int = -1) -> History:
    """``still``: a version that changes nothing."""
    made = History(Dying(), small_catalogue(), audits=True, num_owners=1)
    rng = np.random.default_rng(5)
    for version in range(num_versions):
        new = made.tensors[-1] if version == still else random_tensors(made.catalogue, rng)
        made.commit(new, encoding=CYCLE[version % 3])
        if version in anchors:
            made.anchor(version)
    return made


def pruner(made: History, clock: Callable[[], float] = lambda: NOW) -> Pruner:
    return Pruner(made.store, made.archive, made.catalogue, clock)


def kept(made: History) -> list[int]:
    """Versions that come back bit by bit; each of the others must be refused by name."""
    found = []
    latest = made.records[-1]
    for version in range(len(made.records)):
        if version < made.archive.retained().floor:
            with pytest.raises(ConfigError, match=f"version {version} is not kept"):
                record_at(made.archive, latest, made.catalogue, version)
            continue
        record = record_at(made.archive, latest, made.catalogue, version)
        rebuilt = replay(made.archive, record, made.catalogue)
        assert all(np.array_equal(rebuilt[name], bits) for name, bits in made.tensors[version].items())
        found.append(version)
    return found


@pytest.mark.parametrize(
    ("keep", "oldest"), [(0, 0), (9, 0), (7, 0), (6, 3), (4, 3), (3, 6), (1, 6), (50, 0)]
)
def test_the_newest_stay_and_what_their_anchor_allows(keep: int, oldest: int) -> None:
    made = grown()
    pruner(made).prune(made.records[-1], keep)
    assert kept(made) == list(range(oldest, 9))


def test_without_an_anchor_nothing_goes() -> None:
    made = grown(anchors=())
    before = made.store.list("")
    assert pruner(made).prune(made.records[-1], 1) == []
    assert made.store.list("") == before


def test_nothing_is_left_of_what_went() -> None:
    made, fresh = grown(), grown(anchors=(6,))
    removed = pruner(made).prune(made.records[-1], 2)
    run = made.catalogue.run
    older = {f"{run}/{kind}/{made.records[v].attempt}/" for v in range(7) for kind in ("payload", "close")}
    left = made.store.list("")
    assert not [key for key in left if any(key.startswith(prefix) for prefix in older)]
    assert f"{run}/audit/{made.records[5].audit}" not in left
    assert f"{run}/manifest/{made.records[5].manifest}" not in left
    assert f"{run}/manifest/{made.records[6].manifest}" in left  # what the anchor of version 6 lies beside
    assert set(left) - {f"{run}/floor/6"} <= set(fresh.store.list(""))
    assert len(set(removed)) == len(removed)
    assert pruner(made).prune(made.records[-1], 2) == []


def test_version_after_version_as_a_run_does_it() -> None:
    made = History(Dying(), small_catalogue(), audits=True, num_owners=1)
    one, rng, most = pruner(made), np.random.default_rng(5), 0
    for version in range(14):
        record = made.commit(random_tensors(made.catalogue, rng), encoding=CYCLE[version % 3])
        if version % 4 == 2:
            made.anchor(version)
        one.prune(record, 3)
        most = max(most, len(made.store.list("")))
        assert kept(made)[-3:] == list(range(max(version - 2, 0), version + 1))
    assert kept(made) == [10, 11, 12, 13]
    assert most < 100


def test_digests_that_a_kept_version_shares_stay() -> None:
    made = grown(still=6)  # version 5's audit table is version 6's, too
    assert made.records[5].audit == made.records[6].audit
    pruner(made).prune(made.records[-1], 1)
    assert kept(made) == [6, 7, 8]


def test_interrupted_anywhere_it_is_finished_later() -> None:
    whole = grown()
    pruner(whole).prune(whole.records[-1], 2)
    final, at = whole.store.list(""), 0
    while True:
        made = grown()
        assert isinstance(made.store, Dying)
        made.store.left = at
        try:
            pruner(made).prune(made.records[-1], 2)
        except StoreError:
            made.store.left = None
            assert kept(made)[-3:] == [6, 7, 8]
            pruner(made).prune(made.records[-1], 0)  # what was announced is finished under any policy
            if at:
                assert made.store.list("") == final
        else:
            break
        at += 1 if at < 4 else 7
    assert at > 20


def test_what_somebody_reads_stays_until_then() -> None:
    made = grown()
    one = pruner(made, clock=lambda: 0.0)
    with made.archive.reading(4):
        assert one.prune(made.records[-1], 2) == []
        for ref in made.manifests[4].payloads:
            made.archive.get_payload(made.manifests[4], ref)
        with (
            pytest.raises(IntegrityError, match="version 5 is not kept; the oldest is 6"),
            made.archive.reading(5),  # who comes later must look for another version
        ):
            pass
    assert one.prune(made.records[-1], 2)
    assert kept(made) == [6, 7, 8]


@pytest.mark.parametrize(("left_s", "stays"), [(1.0, True), (-SKEW_S, True), (-SKEW_S - 5, False)])
def test_the_lease_of_a_reader_that_died_runs_out(left_s: float, stays: bool) -> None:
    made = grown()
    made.store.put(reader_key(made.catalogue.run, "dead"), to_json(Lease(2, int(NOW + left_s))))
    assert bool(pruner(made).prune(made.records[-1], 2)) is not stays
    assert (reader_key(made.catalogue.run, "dead") in made.store.list("")) is stays


def test_readers_of_what_is_kept_do_not_delay_it() -> None:
    made = grown()
    with made.archive.reading(7):
        assert pruner(made, clock=lambda: 0.0).prune(made.records[-1], 2)


def test_a_long_reading_renews_its_lease() -> None:
    store, now = MemoryStore(), [NOW]
    with reading(store, "run", 3, clock=lambda: now[0]) as keep:
        first = store.list("run/reader/")
        keep()
        assert store.list("run/reader/") == first
        now[0] += LEASE_S * 0.6
        keep()
        assert len(store.list("run/reader/")) == 1
        assert store.list("run/reader/") != first
    assert store.list("") == []


def test_a_renewal_that_fails_is_tried_again_before_the_lease_runs_out() -> None:
    store, now = Dying(), [NOW]
    with reading(store, "run", 3, clock=lambda: now[0]) as keep:
        first = store.list("run/reader/")
        now[0] += LEASE_S * 0.6
        store.left = 0
        keep()
        assert store.list("run/reader/") == first, "the old one stays until there is a new one"
        store.left = None
        now[0] += LEASE_S * 0.05
        keep()
        assert store.list("run/reader/") == first, "a store that fails is not asked at every object"
        now[0] += LEASE_S * 0.1
        keep()
        assert len(store.list("run/reader/")) == 1
        assert store.list("run/reader/") != first
        now[0] += LEASE_S * 0.6
        assert [lease.version for lease in live_leases(store, "run", clock=lambda: now[0])] == [3]


def test_an_anchor_that_lacks_a_payload_carries_nothing() -> None:
    made = grown()
    made.store.delete(anchor_key(made.catalogue.run, made.records[6].attempt, 0, 1))
    with pytest.raises(IntegrityError, match="the anchor of version 6 lacks"):
        pruner(made).prune(made.records[-1], 2)
    assert kept(made) == list(range(9))


def test_a_run_that_is_resumed_collects_planes_without_an_entry(tmp_path: Path) -> None:
    made, run = grown(), small_catalogue().run
    made.archive.put_object("catalogue", to_json(made.catalogue))
    for version, number in ((2, 6), (8, 24)):  # 8 is the present version, its planes may be under way
        made.store.put(anchor_key(run, AttemptId(version=version, number=number), 0, 0), b"x")
    composed = {number: AttemptId(version=4, number=number) for number in (21, 24)}
    made.store.put(payload_key(run, composed[21], 77, 0), b"composed, left by a dead receiver")
    made.store.put(payload_key(run, composed[24], 78, 0), b"composed, a receiver may be taking it")
    made.store.put(payload_key(run, AttemptId(version=8, number=23), 0, 0), b"failed")
    before = set(made.store.list(""))
    assert Collector(Site(run, made.store, tmp_path)).at_start(made.records[-1]) == 3
    assert before - set(made.store.list("")) == {
        f"{run}/anchor/2-6/0/0", f"{run}/payload/4-21/77/0", f"{run}/payload/8-23/0/0"
    }  # fmt: skip
    assert kept(made) == list(range(9))
