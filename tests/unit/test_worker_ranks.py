"""Ranks of an engine behind its one line to all workers: the JSON path, without an engine."""

import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dcr.codec import Item, Payload, decode_payload, encode_payload
from dcr.errors import AttemptFailed, ConfigError, IntegrityError, StoreError, Unreachable
from dcr.model import Bits, Catalogue, from_json, to_json
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import RankPlacement, RankPort
from dcr.receiver.workers import exchange
from dcr.receiver.workers.messages import Answer, Calls, Configure, Greeting
from dcr.receiver.workers.rank_server import RankServer
from dcr.receiver.workers.ranks import RemoteRank, Workers, remote_ranks
from dcr.receiver.workers.spool import Spool
from dcr.testing.deltas import FIRST, audit_of, changed_version, delta_items, random_version
from dcr.testing.toy_parallel import ToyParallelRuntime, catalogue
from dcr.testing.toy_rank import ToyRank, toy_ranks
from dcr.transport.archive import StoreArchive
from dcr.transport.directory import DirectoryStore
from dcr.transport.keys import payload_key


class Line:
    """An ``EngineControl`` whose workers are in this process; counts collective calls."""

    def __init__(self, ranks: Sequence[ToyRank]) -> None:
        self.num_calls = 0
        self.sent: list[str] = []
        self.dead = False
        self.silent: set[int] = set()
        self.servers = [_server(rank, len(ranks)) for rank in ranks]

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        if self.dead:
            raise Unreachable("the engine is dead")
        self.num_calls += 1
        self.sent.append(calls)
        asked = from_json(Calls, calls)
        answers = []
        for rank, server in enumerate(self.servers):
            call = asked.get(str(rank))
            answered = Answer(rank, asked=False) if call is None else server.answer(call)
            answers.append(asdict(answered))
        return [a for a in json.loads(json.dumps(answers)) if a["rank"] not in self.silent]

    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def reset_caches(self) -> None: ...
    def set_version(self, version: str) -> None: ...


def _server(rank: ToyRank, world: int) -> RankServer:
    def make(loader: NativeLoader, catalogue: Catalogue) -> RankPort:
        return rank

    greeting = Greeting(rank.rank, world, 1, "cpu")
    return RankServer(ToyParallelRuntime(rank.rank, world), greeting, make_rank=make)


@pytest.fixture
def ranks() -> list[ToyRank]:
    return toy_ranks(3)


@pytest.fixture
def line(ranks: list[ToyRank]) -> Line:
    return Line(ranks)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    (tmp_path / "store").mkdir()
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def remote(line: Line, store: DirectoryStore, tmp_path: Path) -> list[RemoteRank]:
    StoreArchive(store, catalogue().run).put_object("catalogue", to_json(catalogue()))
    setup = Configure(str(tmp_path / "store"), catalogue().run, catalogue().digest())
    return remote_ranks(Workers(line, folder=tmp_path, gather_s=5.0), setup)


@pytest.fixture
def writer(remote: list[RemoteRank]) -> InstanceWriter:
    found = InstanceWriter(remote, catalogue())
    found.prewarm()
    return found


def published(store: DirectoryStore, items: list[Item]) -> Payload:
    run, digest = catalogue().run, catalogue().digest()
    data = encode_payload(items, attempt=FIRST, owner=0, sequence=0, run=run, parent=0, catalogue=digest)
    payload = decode_payload(data)
    store.put(payload_key(catalogue().run, FIRST, payload.owner, payload.sequence), data)
    return payload


def test_refit_and_audit_equal_those_of_local_ranks(
    writer: InstanceWriter, store: DirectoryStore, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    old = random_version(catalogue(), rng)
    new = changed_version(catalogue(), old, rng, 0.3)
    writer.restore(old, audit_of(catalogue(), old))
    writer.begin(clean=True)
    items = delta_items(catalogue(), old, new, writer.prewarm())
    stats = writer.apply(published(store, items))
    writer.synchronize()
    writer.check()
    assert stats.num_items == len(items)
    assert writer.audit().items() <= audit_of(catalogue(), new).items()
    assert not list(tmp_path.glob("dcr-restore-*"))


def test_workers_that_cannot_reach_the_store_are_handed_what_the_front_has_fetched(
    line: Line, tmp_path: Path
) -> None:
    spool = Spool(tmp_path / "spool")
    remote = remote_ranks(Workers(line, folder=tmp_path, gather_s=5.0), spool.setup(catalogue()), spool)
    writer = InstanceWriter(remote, catalogue())
    rng = np.random.default_rng(3)
    old = random_version(catalogue(), rng)
    new = changed_version(catalogue(), old, rng, 0.3)
    items = delta_items(catalogue(), old, new, writer.prewarm())
    (tmp_path / "far").mkdir()
    payload = published(DirectoryStore(tmp_path / "far"), items)
    writer.restore(old, audit_of(catalogue(), old))
    writer.begin(clean=True)
    assert writer.apply(payload).num_items == len(items)
    writer.check()
    assert writer.audit().items() <= audit_of(catalogue(), new).items()
    left = [path for path in (tmp_path / "spool").rglob("*") if path.is_file() and "payload" in path.parts]
    assert left == [], "nothing stays once all ranks have it"
    with pytest.raises(AttemptFailed, match="no bytes"):
        writer.apply(replace(payload, raw=None))


def test_calls_of_all_ranks_travel_together(writer: InstanceWriter, line: Line) -> None:
    before = line.num_calls
    writer.begin(clean=True)
    writer.synchronize()
    assert line.num_calls == before + 2


def test_two_calls_of_one_rank_are_both_answered(remote: list[RemoteRank], line: Line) -> None:
    second, calls = remote[1], line.num_calls
    workers = second._workers
    workers._gather_s = 0.5
    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(second.prewarm)  # waits for calls of the other ranks
        while not workers._batch.calls:
            pass
        other = pool.submit(second.digests)
        assert isinstance(one.result(), RankPlacement)
        assert isinstance(other.result(), dict)
    assert line.num_calls == calls + 2


def test_a_version_that_cannot_be_written_leaves_nothing(
    remote: list[RemoteRank], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bits, write = random_version(catalogue(), np.random.default_rng(3)), exchange.write

    def full(path: Path, tensors: Mapping[str, Bits]) -> None:
        write(path, tensors)
        raise StoreError("exchange: no space left on device")

    monkeypatch.setattr(exchange, "write", full)
    for _ in range(2):  # nor is it taken for written when it is asked for again
        with pytest.raises(StoreError, match="no space"):
            remote[0].restore(bits)
        assert not list(tmp_path.glob("dcr-restore-*"))


def test_errors_keep_their_class(writer: InstanceWriter, ranks: list[ToyRank]) -> None:
    ranks[1].fails["audit"] = IntegrityError("w: its copies differ")
    with pytest.raises(IntegrityError, match="its copies differ"):
        writer.audit()


def test_unknown_exceptions_fail_the_attempt(writer: InstanceWriter, ranks: list[ToyRank]) -> None:
    ranks[2].fails["synchronize"] = RuntimeError("kernel")
    with pytest.raises(AttemptFailed, match="RuntimeError: kernel"):
        writer.synchronize()
    writer.begin(clean=False)


def test_other_bytes_than_admitted_are_refused(writer: InstanceWriter, store: DirectoryStore) -> None:
    rng = np.random.default_rng(4)
    old = random_version(catalogue(), rng)
    payload = published(store, delta_items(catalogue(), old, changed_version(catalogue(), old, rng, 0.3)))
    other = Payload(payload.identity, "0" * 32, payload.items)
    writer.begin(clean=False)
    with pytest.raises(AttemptFailed, match="another payload than was admitted"):
        writer.apply(other)


def test_a_dead_engine_is_unreachable(remote: list[RemoteRank], line: Line) -> None:
    line.dead = True
    results: list[BaseException] = []

    def call(rank: RemoteRank) -> None:
        try:
            rank.begin(clean=False)
        except Unreachable as err:
            results.append(err)

    threads = [threading.Thread(target=call, args=(rank,)) for rank in remote]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3


def test_a_restarted_worker_asks_for_its_run(ranks: list[ToyRank], tmp_path: Path) -> None:
    workers = Workers(Line(ranks), folder=tmp_path, gather_s=0.0)
    with pytest.raises(AttemptFailed, match="configure comes first"):
        RemoteRank(workers, 0).begin(clean=True)


def applied(line: Line, writer: InstanceWriter, store: DirectoryStore) -> tuple[str, Mapping[str, Bits]]:
    """The collective call that applied a difference, and the version that it made."""
    rng = np.random.default_rng(5)
    old = random_version(catalogue(), rng)
    new = changed_version(catalogue(), old, rng, 0.3)
    writer.restore(old, audit_of(catalogue(), old))
    writer.begin(clean=True)
    writer.apply(published(store, delta_items(catalogue(), old, new, writer.prewarm())))
    return line.sent[-1], new


@pytest.mark.parametrize("checked", [False, True])
def test_a_call_that_comes_twice_or_late_is_not_done_again(
    writer: InstanceWriter, line: Line, store: DirectoryStore, checked: bool
) -> None:
    call, new = applied(line, writer, store)
    if checked:
        writer.synchronize()
        writer.check()
    answers = [from_json(Answer, json.dumps(answer)) for answer in line.call_workers(call)]
    assert [answer.error for answer in answers] == ["AttemptFailed"] * 3
    assert all("came late or twice" in answer.message for answer in answers)
    assert writer.audit().items() <= audit_of(catalogue(), new).items()


def test_a_rank_obeys_the_latest_front_only(
    writer: InstanceWriter, line: Line, store: DirectoryStore, tmp_path: Path
) -> None:
    call, _ = applied(line, writer, store)
    later = Workers(line, folder=tmp_path, gather_s=5.0)
    writer.begin(clean=True)  # so far the later one has only greeted: its hello may be an old one
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda rank: RemoteRank(later, rank).digests(), range(3)))
    with pytest.raises(AttemptFailed, match="another receiver has taken over"):
        writer.begin(clean=True)
    answers = [from_json(Answer, json.dumps(answer)) for answer in line.call_workers(call)]
    assert [answer.error for answer in answers] == ["AttemptFailed"] * 3


def test_a_rank_that_was_started_anew_obeys_no_call_of_before(
    writer: InstanceWriter, line: Line, ranks: list[ToyRank]
) -> None:
    line.servers = [_server(rank, 3) for rank in ranks]
    with pytest.raises(AttemptFailed, match="started anew"):
        writer.begin(clean=True)


@pytest.mark.parametrize("silent", [{1}, {0, 1, 2}])
def test_missing_ranks_are_no_engine(ranks: list[ToyRank], silent: set[int]) -> None:
    line = Line(ranks)
    line.silent |= silent
    with pytest.raises(ConfigError, match="one engine is one instance"):
        Workers(line)


def test_exchanged_arrays_are_what_was_written(tmp_path: Path) -> None:
    tensors: dict[str, Bits] = {
        "a": np.arange(7, dtype=np.uint8),
        "b": np.arange(1000, dtype=np.uint16),
        "none": np.zeros(0, dtype=np.uint32),
    }
    exchange.write(tmp_path / "x", tensors)
    found = exchange.read(tmp_path / "x")
    assert list(found) == list(tensors)
    for name, bits in tensors.items():
        assert found[name].dtype == bits.dtype
        np.testing.assert_array_equal(found[name], bits)
