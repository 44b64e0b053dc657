"""Residual conversion: dirty inputs, the closure of what they alter, parts that must cover and agree (R5)."""

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.integration.quantized import Other, Quantized, specs

from dcr.errors import AttemptFailed, ConfigError, PayloadError
from dcr.indexmap import Box, IndexMap
from dcr.model import AttemptId, Bits, Catalogue, TensorSpec, bits_dtype
from dcr.source.baseline import Baseline
from dcr.source.detect import changed_indices, host_bits
from dcr.source.parts_wire import pack_parts, unpack_parts
from dcr.source.residual import Part, ResidualConversion, assemble, ranges, required_tensors
from dcr.source.residual_shards import ResidualShards
from dcr.source.shares import OwnedShards

WORLD = 2
COPY = Other("other", "other.copy", IndexMap.identity(2), "custom export")
SPECS = specs(WORLD, COPY)
KEY = Catalogue("ab" * 16, "cd" * 16, SPECS).audit_key
TWICE = IndexMap((Box((2,), 0, (1,), 0, (1,)), Box((1,), 2, (1,), 1, (1,))), 3, 3)


class Switch:
    """Messages between threads that play ranks."""

    def __init__(self, world: int) -> None:
        self.world = world
        self._barrier = threading.Barrier(world, timeout=10)
        self._box: list[Sequence[bytes]] = [()] * world

    def of(self, rank: int) -> "Port":
        return Port(self, rank)

    def route(self, rank: int, messages: Sequence[bytes]) -> list[bytes]:
        self._box[rank] = messages
        self._barrier.wait()
        received = [sent[rank] for sent in self._box]
        self._barrier.wait()
        return received


class Port:
    def __init__(self, switch: Switch, rank: int) -> None:
        self.rank, self.world, self._switch = rank, switch.world, switch

    def route(self, messages: Sequence[bytes]) -> list[bytes]:
        return self._switch.route(self.rank, messages)


def quantized(rank: int, switch: Switch) -> Quantized:
    port = switch.of(rank)

    def largest(own: float) -> float:
        sent = [np.float32(own).tobytes()] * port.world
        return max(float(np.frombuffer(got, np.float32)[0]) for got in port.route(sent))

    return Quantized(rank, WORLD, largest, COPY)


class Ranks:
    """Two ranks with trackers; every step of all of them at once."""

    def __init__(self, folder: Path) -> None:
        switch = Switch(WORLD)
        self.sources = [quantized(rank, switch) for rank in range(WORLD)]
        self.shards = [
            ResidualShards(OwnedShards(source, rank), source, switch.of(rank))
            for rank, source in enumerate(self.sources)
        ]
        self.collect(None)
        self.trackers = [
            Baseline.create(folder / str(rank), shards.tasks(), shards.read, audit_key=KEY)
            for rank, shards in enumerate(self.shards)
        ]
        for shards, trackers in zip(self.shards, self.trackers, strict=True):
            shards.bind(trackers)
            shards.settled(AttemptId(0, 0))

    def collect(self, base: AttemptId | None) -> list[tuple[str, ...]]:
        found, failed = self._collected(base)
        if failed:
            raise failed[0]
        return found

    def failures(self, base: AttemptId | None) -> list[str]:
        """What the ranks raise."""
        return [f"{type(err).__name__}: {err}" for err in self._collected(base)[1]]

    def _collected(self, base: AttemptId | None) -> tuple[list[tuple[str, ...]], list[Exception]]:
        found: list[tuple[str, ...]] = [()] * WORLD
        failed: list[Exception] = []

        def one(rank: int) -> None:
            try:
                found[rank] = self.shards[rank].collect(base)
            except Exception as err:  # noqa: BLE001 -- raised again by the test's own thread
                failed.append(err)

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(WORLD)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found, failed

    def changed(self) -> dict[str, list[int]]:
        """Canonical elements whose read bits differ from the trackers', by name, over all ranks."""
        found: dict[str, list[int]] = {}
        for shards, trackers in zip(self.shards, self.trackers, strict=True):
            for task in shards.tasks():
                local = changed_indices(host_bits(shards.read(task)), trackers.bits(task))
                if local.size:
                    found.setdefault(task.name, []).extend(task.map.to_far(local).tolist())
        return {name: sorted(at) for name, at in found.items()}


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    made = Ranks(tmp_path)
    for source in made.sources:
        source.asked.clear()
    return made


def test_each_residual_tensor_has_one_owner(ranks: Ranks) -> None:
    owned = [task.name for shards in ranks.shards for task in shards.tasks()]
    assert sorted(owned) == sorted(spec.name for spec in SPECS)


def test_a_shared_scale_alters_outputs_of_unchanged_inputs(ranks: Ranks) -> None:
    ranks.sources[1].rows[:] = 1.0
    ranks.collect(AttemptId(0, 0))
    assert ranks.changed() == {"weight.scale": [0], "weight.quantized": [6, 7, 8, 9, 10, 11]}
    ranks.sources[0].rows[0, 0] = 4.0  # rank 1's rows stay, but their quantized values are others now
    assert ranks.collect(AttemptId(0, 0)) == [("weight.quantized", "weight.scale")] * WORLD
    whole = {task.name: shards.read(task) for shards in ranks.shards for task in shards.tasks()}
    expected = np.array([127, *[0] * 5, *[32] * 6], dtype=np.int8)
    np.testing.assert_array_equal(host_bits(whole["weight.quantized"]).view(np.int8), expected)
    assert ranks.sources[1].asked[-1] == ("weight.quantized", "weight.scale")


def test_what_no_changed_input_feeds_is_neither_converted_nor_changed(ranks: Ranks) -> None:
    assert ranks.collect(AttemptId(0, 0)) == [(), ()]
    assert ranks.sources[0].asked == [()]
    assert ranks.changed() == {}
    ranks.sources[0].other[:] = 7.0
    ranks.sources[1].other[:] = 7.0
    assert ranks.collect(AttemptId(0, 0)) == [("other.copy",)] * WORLD
    assert ranks.changed() == {"other.copy": [0, 1]}


def test_another_base_than_the_settled_one_makes_everything_dirty(ranks: Ranks) -> None:
    everything = ("other.copy", "weight.quantized", "weight.scale")
    assert ranks.collect(AttemptId(5, 3)) == [everything] * WORLD
    assert ranks.changed() == {}


def test_a_transition_that_failed_leaves_its_inputs_dirty(ranks: Ranks) -> None:
    ranks.sources[0].rows[0, 0] = 4.0
    ranks.collect(AttemptId(0, 0))
    assert ranks.collect(AttemptId(0, 0)) == [("weight.quantized", "weight.scale")] * WORLD


def test_parts_that_disagree_fail_with_the_ranges(ranks: Ranks) -> None:
    ranks.sources[1].other[1] = 9.0
    with pytest.raises(AttemptFailed, match=r"'other.copy': rank 1 and earlier parts differ at 1\.\.1"):
        ranks.collect(AttemptId(0, 0))


def test_a_conversion_that_breaks_fails_the_attempt_on_every_rank(ranks: Ranks) -> None:
    def broken(part: Part) -> Part:
        raise RuntimeError("out of memory")

    ranks.sources[1].spoil = broken
    ranks.sources[0].other[:] = 2.0
    with pytest.raises(AttemptFailed, match=r"RuntimeError: out of memory \(found on rank 1\)"):
        ranks.collect(AttemptId(0, 0))


def test_inputs_that_cannot_be_digested_fail_the_attempt_on_every_rank(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, str]:
        raise MemoryError("host copy")

    ranks.sources[0].other[:] = ranks.sources[1].other[:] = 2.0
    with monkeypatch.context() as patched:
        patched.setattr(ranks.sources[1], "input_digests", broken)
        told = ranks.failures(AttemptId(0, 0))
    assert told == ["AttemptFailed: MemoryError: host copy (found on rank 1)"] * WORLD
    assert ranks.sources[0].asked == []  # nobody converts for an attempt that is given up
    assert ranks.collect(AttemptId(0, 0)) == [("other.copy",)] * WORLD


def test_parts_that_cannot_be_put_together_fail_the_attempt_on_every_rank(
    ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Bits:
        raise MemoryError("whole tensor")

    ranks.sources[0].other[:] = ranks.sources[1].other[:] = 2.0
    monkeypatch.setattr("dcr.source.residual_shards.assemble", broken)
    told = ranks.failures(AttemptId(0, 0))
    assert [why.partition(" (")[0] for why in told] == ["AttemptFailed: MemoryError: whole tensor"] * WORLD


def test_elements_that_nobody_gives_fail_with_the_ranges(ranks: Ranks) -> None:
    ranks.sources[0].rows[0, 0] = 4.0
    ranks.sources[1].spoil = lambda part: None if part.name == "weight.quantized" else part
    with pytest.raises(AttemptFailed, match=r"'weight.quantized': no rank gave elements 6\.\.11"):
        ranks.collect(AttemptId(0, 0))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Part("t", IndexMap.identity(3), np.zeros(3, np.uint8)), r"sent uint8 \[3\] for 3 elements"),
        (Part("t", IndexMap.identity(2), np.zeros(2, np.uint16)), r"sent uint16 \[2\] for 2 elements"),
        (Part("t", TWICE, np.zeros(3, np.uint16)), "gives an element twice"),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_are_named(part: Part, message: str) -> None:
    with pytest.raises(AttemptFailed, match=message):
        assemble(TensorSpec("t", (3,), "bfloat16"), [("rank 0", part)])


def test_closure_follows_outputs_that_are_inputs() -> None:
    chain = [ResidualConversion(str(i), (f"t{i}",), (f"t{i + 1}",), "") for i in range(5)]
    assert required_tensors(["t3"], chain) == ("t4", "t5")
    assert required_tensors([], chain) == ()


def test_a_tensor_is_either_direct_or_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    source = quantized(0, Switch(1))
    both = (ResidualConversion("x", ("weight",), ("direct",), ""),)
    monkeypatch.setattr(source, "conversions", lambda: both)
    with pytest.raises(ConfigError, match="both direct and residual: direct"):
        ResidualShards(OwnedShards(source, 0), source, Switch(1).of(0))


def test_ranges_are_told_shortly() -> None:
    assert ranges(np.array([1, 2, 3, 7, 9, 10, 20, 30, 40])) == "1..3, 7..7, 9..10, 20..20 and 2 more"


def some_parts() -> list[Part]:
    bits: Bits = np.arange(6, dtype=bits_dtype("bfloat16"))
    return [
        Part("a", IndexMap.permuted((2, 3), (1, 0)), bits),
        Part("b", IndexMap.contiguous(1, 4, 9), np.array([7], dtype=np.uint8)),
        Part("c", IndexMap((), 0, 5), np.zeros(0, dtype=np.uint32)),
    ]


def test_parts_survive_their_message() -> None:
    for sent, got in zip(some_parts(), unpack_parts(pack_parts(some_parts())), strict=True):
        assert (sent.name, sent.map, sent.bits.dtype) == (got.name, got.map, got.bits.dtype)
        np.testing.assert_array_equal(sent.bits, got.bits)


def test_damaged_messages_of_parts_are_refused() -> None:
    message = pack_parts(some_parts())
    for cut in range(len(message)):
        with pytest.raises(PayloadError):
            unpack_parts(message[:cut])
    with pytest.raises(PayloadError, match="1 bytes too many"):
        unpack_parts(message + b"x")
