"""Real rank appliers over the toy parallel model: every rank's storage is what a dense load leaves."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcr.errors import AttemptFailed
from dcr.model import Catalogue, Encoding
from dcr.receiver.apply import RankApplier
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.methods import MethodName
from dcr.receiver.writer import Slice
from dcr.testing.deltas import Version, audit_of, changed_version, delta_item, payload_of, random_version
from dcr.testing.native_loader_suite import dense_load, storage_bytes
from dcr.testing.toy_parallel import ToyParallelRuntime, catalogue

CATALOGUE: Catalogue = catalogue()


@contextmanager
def instance(
    num_ranks: int, version: Version, method: MethodName = "auto"
) -> Iterator[tuple[InstanceWriter, list[ToyParallelRuntime]]]:
    """At ``version``."""
    runtimes = [ToyParallelRuntime(rank, num_ranks) for rank in range(num_ranks)]
    writer = InstanceWriter([RankApplier(r, CATALOGUE, method=method) for r in runtimes], CATALOGUE)
    writer.prewarm()
    writer.restore(version, audit_of(CATALOGUE, version))
    try:
        yield writer, runtimes
    finally:
        writer.close()


def refit(writer: InstanceWriter, old: Version, new: Version, encoding: Encoding) -> None:
    """One proven transition."""
    items = []
    for spec in CATALOGUE.tensors:
        kind = Encoding.XOR if encoding is Encoding.DELTA16 and spec.dtype == "float32" else encoding
        items.append(delta_item(CATALOGUE.audit_key, spec, kind, old[spec.name], new[spec.name]))
    writer.begin(clean=True)
    writer.apply(payload_of(CATALOGUE, items))
    writer.synchronize()
    writer.check()


def is_dense(runtimes: list[ToyParallelRuntime], version: Version) -> bool:
    """Bit for bit, padding included."""
    for rank, runtime in enumerate(runtimes):
        oracle = ToyParallelRuntime(rank, len(runtimes))
        dense_load(oracle, CATALOGUE, version)
        if storage_bytes(runtime) != storage_bytes(oracle):
            return False
    return True


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([1, 2, 3]),
    st.integers(0, 99),
    st.sampled_from([0.05, 0.5]),
    st.sampled_from(list(Encoding)),
    st.sampled_from(["auto", "hook"]),
)
def test_every_rank_is_what_a_dense_load_leaves(
    num_ranks: int, seed: int, rate: float, encoding: Encoding, method: MethodName
) -> None:
    rng = np.random.default_rng(seed)
    old = random_version(CATALOGUE, rng)
    new = changed_version(CATALOGUE, old, rng, rate)
    with instance(num_ranks, old, method) as (writer, runtimes):
        refit(writer, old, new, encoding)
        assert is_dense(runtimes, new)
        assert writer.audit().items() <= audit_of(CATALOGUE, new).items()


def test_each_flipped_bit_of_each_rank_is_found() -> None:
    """By the check of a refit that touches it, by the audit, and located on its rank."""
    old = random_version(CATALOGUE, np.random.default_rng(3))
    with instance(2, old) as (writer, runtimes):
        for rank, runtime in enumerate(runtimes):
            bits = runtime.resident()["o"].data.view(torch.int16).reshape(-1)
            for at in range(0, bits.numel(), 17):
                bits[at] ^= 1
                index = at // 6 * 12 + rank * 6 + at % 6
                assert writer.audit()["o.weight"] != audit_of(CATALOGUE, old)["o.weight"]
                assert writer.locate("o.weight", old["o.weight"]) == {rank: ((index, index + 1),)}
                (digest,) = writer.scan([Slice("o.weight", 0, index)])
                assert digest.count == index
                bits[at] ^= 1


@pytest.mark.parametrize("encoding", [Encoding.XOR, Encoding.DELTA16])
def test_a_replica_on_another_base_fails_the_check(encoding: Encoding) -> None:
    """A difference on a replica that had decayed: the other rank's digest does not cover for it."""
    old = random_version(CATALOGUE, np.random.default_rng(4))
    new = changed_version(CATALOGUE, old, np.random.default_rng(5), 1.0)
    with instance(3, old) as (writer, runtimes):
        runtimes[2].resident()["norm"].data.view(torch.int16)[0, 5] ^= 4
        with pytest.raises(AttemptFailed, match=r"norm.weight: its copies on ranks \[2\] differ"):
            refit(writer, old, new, encoding)


def test_rebuilt_storage_is_learned_anew() -> None:
    """Moved storage is noticed, and the new map reads the same version."""
    old = random_version(CATALOGUE, np.random.default_rng(6))
    new = changed_version(CATALOGUE, old, np.random.default_rng(7), 0.3)
    with instance(2, old) as (writer, runtimes):
        runtimes[1].rebuild()
        assert writer.rebuilt().startswith("rank 1: ")
        with pytest.raises(AttemptFailed, match="learned and proven again"):
            writer.begin(clean=True)
        writer.prewarm()
        assert writer.audit().items() <= audit_of(CATALOGUE, old).items()
        refit(writer, old, new, Encoding.XOR)
        assert is_dense(runtimes, new)
