"""Collection takes what failed attempts left and nothing else."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr.errors import ConfigError
from dcr.model import GENESIS, AttemptId, Encoding
from dcr.testing.history import History, random_tensors, small_catalogue
from dcr.testing.transport_suite import OTHER_RUN, RUN
from dcr.transport.base import ObjectStore
from dcr.transport.chain import chain
from dcr.transport.collect import collect_attempts, collect_between
from dcr.transport.directory import DirectoryStore
from dcr.transport.keys import close_key, payload_key
from dcr.transport.memory import MemoryStore
from dcr.transport.replay import replay

ATTEMPTS = st.builds(AttemptId, number=st.integers(0, 12), version=st.integers(0, 12))


def keys(run: str, attempts: set[AttemptId]) -> set[str]:
    payloads = {payload_key(run, attempt, 0, 0) for attempt in attempts}
    return payloads | {close_key(run, attempt, 0) for attempt in attempts}


def fill(store: ObjectStore, run: str, attempts: set[AttemptId]) -> None:
    for key in keys(run, attempts):
        store.put(key, b"x")


@given(st.sets(ATTEMPTS), st.sets(ATTEMPTS))
def test_exactly_the_dead_attempts_of_the_run_go(present: set[AttemptId], keep: set[AttemptId]) -> None:
    store = MemoryStore()
    for run in (RUN, OTHER_RUN, RUN + "0"):
        fill(store, run, present)
    for key in ("manifest/" + "0" * 32, "payload/notes", "payload/1-01/0/0", "close/x/0"):
        store.put(f"{RUN}/{key}", b"x")
    before = set(store.list(""))
    deleted = collect_attempts(store, RUN, keep)
    latest = max((attempt.number for attempt in keep), default=-1)
    dead = {attempt for attempt in present - keep if attempt.number < latest}
    assert set(deleted) == keys(RUN, dead)
    assert set(store.list("")) == before - set(deleted)
    assert collect_attempts(store, RUN, keep) == []


def test_an_attempt_prepared_meanwhile_stays() -> None:
    store = MemoryStore()
    committed, failed, new = (AttemptId(version=3, number=number) for number in (7, 6, 8))
    fill(store, RUN, {committed, failed, new})
    collect_attempts(store, RUN, [committed])
    left = {key.split("/")[2] for key in store.list(f"{RUN}/")}
    assert left == {str(committed), str(new)}


def test_a_delta_that_a_receiver_is_taking_stays() -> None:
    """Composed from version 3 up to the latest commit; what leads to an earlier one is nobody's any more."""
    store = MemoryStore()
    earlier, latest = AttemptId(version=6, number=6), AttemptId(version=7, number=8)
    lent, left_behind = replace(latest, version=3), replace(earlier, version=3)
    fill(store, RUN, {earlier, latest, lent, left_behind})
    collect_attempts(store, RUN, [earlier, latest])
    assert {key.split("/")[2] for key in store.list(f"{RUN}/")} == {str(earlier), str(latest), str(lent)}


def test_without_anything_to_keep_nothing_goes() -> None:
    store = MemoryStore()
    fill(store, RUN, {GENESIS, AttemptId(version=1, number=1)})
    assert collect_attempts(store, RUN, []) == []


def test_what_is_left_can_be_replayed() -> None:
    """The use that the docstring describes: keep the chain behind the record."""
    rng = np.random.default_rng(3)
    history = History(MemoryStore(), small_catalogue())
    for _ in range(4):
        history.commit(random_tensors(history.catalogue, rng), encoding=Encoding.XOR)
    record, archive = history.records[-1], history.archive
    fill_failed = {AttemptId(version=version, number=3 * version - 1) for version in (1, 2, 3)}
    fill(history.store, history.catalogue.run, fill_failed)
    deleted = collect_attempts(
        history.store, history.catalogue.run, {manifest.attempt for manifest in chain(archive, record)}
    )
    assert len(deleted) == 2 * len(fill_failed)
    assert replay(archive, record, history.catalogue).keys() == history.tensors[-1].keys()


@pytest.mark.parametrize("run", ["", "a/b", "..", "*"])
def test_only_a_run_can_be_collected(run: str) -> None:
    store = MemoryStore()
    fill(store, RUN, {GENESIS})
    with pytest.raises(ConfigError, match="run id"):
        collect_attempts(store, run, [AttemptId(version=9, number=9)])
    assert len(store.list("")) == 2


def test_between_two_commits_exactly_the_failed_attempts_go() -> None:
    store = MemoryStore()
    committed = {AttemptId(version=2, number=4), AttemptId(version=3, number=8)}
    failed = {AttemptId(version=3, number=number) for number in (5, 6, 7)}
    others = {AttemptId(version=4, number=9), AttemptId(version=2, number=3)}
    for run in (RUN, OTHER_RUN):
        fill(store, run, committed | failed | others)
    deleted = collect_between(store, RUN, AttemptId(version=2, number=4), AttemptId(version=3, number=8))
    assert set(deleted) == keys(RUN, failed)
    assert set(store.list("")) == keys(RUN, committed | others) | keys(OTHER_RUN, committed | failed | others)
    assert collect_between(store, RUN, AttemptId(version=3, number=8), AttemptId(version=4, number=9)) == []


def test_what_dead_writers_of_failed_attempts_left_is_swept(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for number in (1, 2):
        store.put(payload_key(RUN, AttemptId(version=1, number=number), 0, 0), b"x")
    stale = [path.with_name(".tmp-1-2") for path in tmp_path.rglob("payload/1-*/0/0")]
    for path in stale:
        path.write_bytes(b"part")
    collect_between(store, RUN, GENESIS, AttemptId(version=1, number=2))
    assert [path.exists() for path in sorted(stale)] == [False, True]
