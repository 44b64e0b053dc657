"""A receiver some versions behind takes one composed delta; what it holds is proven, never believed."""

import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.receiver_sites import tau

from dcr import observe
from dcr.codec import Payload, decode_payload, encode_payload
from dcr.errors import AttemptFailed
from dcr.model import CommitRecord, Encoding, ReceiverState
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.apply import Applier
from dcr.receiver.catch_up import CatchUpPolicy
from dcr.receiver.methods import MethodName
from dcr.receiver.writer import ApplyStats
from dcr.testing.deltas import changed_version, random_version
from dcr.testing.history import History
from dcr.testing.native_loader_suite import dense_load, storage_bytes
from dcr.testing.toy_runtime import RecordingGate, ToyRuntime
from dcr.transport.depot import Depot
from dcr.transport.keys import payload_key
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport
from dcr.transport.retention import Pruner

CYCLE = (Encoding.XOR, Encoding.DELTA16, Encoding.OVERWRITE, Encoding.DELTA16, Encoding.XOR)
"""Masks and differences on one element, and retries (all overwrites) in between."""


def grown(num_versions: int, *, tiny: bool = False, rate: float = 0.3) -> History:
    catalogue = ToyRuntime(tiny=tiny).catalogue
    history = History(MemoryStore(), catalogue, num_owners=1, audits=True)
    rng = np.random.default_rng(3)
    now = random_version(catalogue, rng)
    for version in range(num_versions):
        history.commit(now, encoding=CYCLE[version % len(CYCLE)])
        now = changed_version(catalogue, now, rng, rate)
    return history


@pytest.fixture(scope="module")
def shared() -> History:
    """Nobody may change it."""
    return grown(51)


@pytest.fixture(scope="module")
def small() -> History:
    """Of a model whose every tensor can be read back; nobody may change it."""
    return grown(10, tiny=True)


@dataclass
class Runtime:
    """One receiver of ``history`` over the toy runtime."""

    history: History
    method: MethodName = "auto"
    tied: bool = False
    policy: CatchUpPolicy | None = CatchUpPolicy()  # noqa: RUF009 -- frozen
    loads: int = 0
    gate: RecordingGate = field(default_factory=RecordingGate)

    def __post_init__(self) -> None:
        history = self.history
        self.loader = self.new_loader()
        self.agent = ReceiverAgent(
            "runtime-0",
            Applier(self.loader, history.catalogue, method=self.method),
            self.gate,
            transport=ObjectTransport(history.store, history.catalogue.run),
            archive=history.archive,
            catalogue=history.catalogue,
            incarnation="i",
            catch_up=self.policy,
        )

    def admit(self, record: CommitRecord) -> list[dict[str, Any]]:
        """As the coordinator does; which composed deltas were applied."""
        attempt = tau(record.version + 1, record.attempt.number + 1)
        with spans("receiver.catch_up") as seen:
            self.agent.fence(attempt, record)
            report = self.agent.restore(attempt, record)
        assert (report.state, report.version) == (ReceiverState.CLEAN, record.version)
        assert self.served() is None
        self.agent.settle(record)
        assert self.served() == record.version
        return seen

    def served(self) -> int | None:
        return self.gate.version

    def new_loader(self) -> ToyRuntime:
        tiny = ToyRuntime(tiny=True)
        return tiny if tiny.catalogue == self.history.catalogue else ToyRuntime(tied=self.tied)

    def holds(self, version: int) -> bool:
        oracle = self.new_loader()
        dense_load(oracle, self.history.catalogue, self.history.tensors[version])
        return storage_bytes(self.loader) == storage_bytes(oracle)


@contextmanager
def spans(name: str) -> Iterator[list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []

    def listen(event: observe.Event) -> None:
        if event.name == name:
            seen.append(dict(event.fields))

    with observe.listening(listen):
        yield seen


@pytest.mark.parametrize(("since", "version"), [(3, 4), (3, 10), (0, 50)])
def test_one_delta_from_any_version_behind(shared: History, since: int, version: int) -> None:
    runtime = Runtime(shared)
    assert runtime.admit(shared.records[since]) == []  # a fresh process holds no version: a dense load
    seen = runtime.admit(shared.records[version])
    assert [(one["since"], one["version"]) for one in seen] == [(since, version)]
    assert runtime.holds(version)


@pytest.mark.parametrize(("method", "tied"), [("hook", False), ("hook", True), ("auto", True)])
def test_every_path_takes_it_also_those_that_take_no_masks(
    shared: History, method: MethodName, tied: bool
) -> None:
    runtime = Runtime(shared, method=method, tied=tied)
    runtime.admit(shared.records[2])
    assert len(runtime.admit(shared.records[7])) == 1
    assert runtime.holds(7)


def test_a_process_that_loaded_the_checkpoint_of_the_beginning_is_behind_too(small: History) -> None:
    runtime = Runtime(small)
    dense_load(runtime.loader, small.catalogue, small.tensors[0])
    assert [one["since"] for one in runtime.admit(small.records[9])] == [0]
    assert runtime.holds(9)


def test_what_is_there_already_is_only_proven(small: History) -> None:
    runtime = Runtime(small)
    dense_load(runtime.loader, small.catalogue, small.tensors[9])
    with spans("replay.payload") as read:
        assert runtime.admit(small.records[9]) == []
    assert read == []
    assert runtime.holds(9)


def test_one_wrong_bit_and_it_is_loaded_densely(shared: History) -> None:
    """Its word that it is clean at version 4 counts for nothing."""
    runtime = Runtime(shared)
    runtime.admit(shared.records[4])
    runtime.loader.data("embed").view(torch.int16)[3, 1] ^= 1
    assert runtime.admit(shared.records[6]) == []
    assert runtime.holds(6)


def test_in_parts_where_memory_is_short(shared: History) -> None:
    runtime = Runtime(shared, policy=CatchUpPolicy(memory_bytes=100))
    runtime.admit(shared.records[3])
    assert len(runtime.admit(shared.records[6])) == 1
    assert runtime.holds(6)


def test_nothing_of_it_stays_in_memory(shared: History, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be as large as a good part of the model, and the next attempt is minutes away."""
    arrays: list[weakref.ref[Any]] = []
    apply = Applier.apply

    def watched(self: Applier, payload: Payload, **how: Any) -> ApplyStats:
        arrays.extend(weakref.ref(item.positions) for item in payload.items)
        return apply(self, payload, **how)

    runtime = Runtime(shared)
    runtime.admit(shared.records[3])
    monkeypatch.setattr(Applier, "apply", watched)
    runtime.admit(shared.records[6])
    gc.collect()
    assert len(arrays) > 1
    assert [array for array in arrays if array() is not None] == []


def test_ranks_elsewhere_find_it_in_the_store_and_nothing_is_left(shared: History) -> None:
    depot, before = Depot(shared.store), shared.store.list("")
    lent: list[str] = []

    @contextmanager
    def lend(payload: Any) -> Iterator[Any]:
        with depot.lend(payload) as stored:
            key = payload_key(stored.run, stored.attempt, stored.owner, stored.sequence)
            found = decode_payload(shared.store.get(key))
            assert (found.identity, found.digest, found.items) == (
                stored.identity,
                stored.digest,
                payload.items,
            )
            lent.append(key)
            yield stored

    runtime = Runtime(shared, policy=CatchUpPolicy(lend=lend))
    runtime.admit(shared.records[5])
    runtime.admit(shared.records[8])
    assert runtime.holds(8)
    assert lent
    assert shared.store.list("") == before


def test_across_an_anchor_only_where_that_is_less_to_read() -> None:
    """The anchor of version 4 lies in both ranges; two deltas are more than it, one is less."""
    made = grown(8, tiny=True, rate=0.15)
    anchor = made.anchor(4)
    deltas = [manifest.num_bytes for manifest in made.manifests]
    assert deltas[4] < anchor.num_bytes < deltas[3] + deltas[4]
    for since, composed in ((3, [3]), (2, [])):
        runtime = Runtime(made)
        dense_load(runtime.loader, made.catalogue, made.tensors[since])
        with spans("replay.payload") as read:
            assert [one["since"] for one in runtime.admit(made.records[7])] == composed
        assert runtime.holds(7)
        assert min(int(one["version"]) for one in read) == 4


def test_a_version_that_was_pruned_is_loaded_from_the_anchor() -> None:
    made = grown(8, tiny=True)
    made.anchor(4)
    runtime = Runtime(made)
    runtime.admit(made.records[3])
    assert Pruner(made.store, made.archive, made.catalogue).prune(made.records[7], 2)
    assert runtime.admit(made.records[7]) == []
    assert runtime.holds(7)


def test_a_link_that_is_damaged_before_an_anchor_costs_nothing_but_the_delta(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = grown(8, tiny=True, rate=0.15)
    runtime = Runtime(made)
    runtime.admit(made.records[3])
    made.anchor(4)
    _damage(made, 4)
    with caplog.at_level(logging.WARNING):
        assert runtime.admit(made.records[7]) == []
    assert "version 7 is loaded densely, since catching up failed: IntegrityError: version 4" in caplog.text
    assert runtime.holds(7)


def test_a_later_fence_ends_it_and_nothing_is_loaded_instead(
    shared: History, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = Runtime(shared)
    runtime.admit(shared.records[2])
    attempt = tau(10, 1000)

    def listen(event: observe.Event) -> None:
        if event.name == "replay.payload":
            runtime.agent._fences.obey(tau(10, 1001))

    runtime.agent.fence(attempt, shared.records[9])
    with (
        caplog.at_level(logging.WARNING),
        observe.listening(listen),
        pytest.raises(AttemptFailed, match="catching up was stopped between two payloads"),
    ):
        runtime.agent.restore(attempt, shared.records[9])
    assert "densely" not in caplog.text
    assert runtime.agent.report().state is ReceiverState.EMPTY


def test_a_broken_link_means_a_dense_load_from_an_anchor_or_a_clear_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    history = grown(6)
    runtime = Runtime(history)
    runtime.admit(history.records[2])
    _damage(history, 4)
    with caplog.at_level(logging.WARNING), pytest.raises(Exception, match="version 4: payload"):
        runtime.admit(history.records[5])
    assert "version 5 is loaded densely, since catching up failed" in caplog.text
    assert "version 4: payload" in caplog.text
    assert runtime.gate.version is None


def _damage(history: History, version: int) -> None:
    """One bit of a value, the digest made to fit: only the list of the manifest tells."""
    manifest, run = history.manifests[version], history.catalogue.run
    keys = {payload_key(run, manifest.attempt, 0, ref.sequence): ref for ref in manifest.payloads}
    decoded = {key: decode_payload(history.store.get(key)) for key in keys}
    key = next(key for key, payload in decoded.items() if payload.items[0].num_entries)
    payload, ref = decoded[key], keys[key]
    payload.items[0].values[0] ^= 1
    data = encode_payload(
        payload.items, attempt=manifest.attempt, owner=0, sequence=ref.sequence, run=run,
        catalogue=payload.catalogue,
    )  # fmt: skip
    history.store.delete(key)
    history.store.put(key, data)
