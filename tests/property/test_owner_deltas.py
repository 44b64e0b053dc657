"""Owners against a dense oracle: their items turn the old canonical tensors into the new (R1, R4, R6, B6)."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dcr.audit import digest_tensor
from dcr.codec import Item, combining
from dcr.codec.choice import CODECS
from dcr.config import CodecConfig
from dcr.model import AttemptId, AuditTable, Encoding, PathClass, TensorSpec, known_dtypes
from dcr.testing.toy_fleet import ToyFleet, apply_items, joined_audit
from dcr.testing.toy_trainer import Placement, Tensors, ToyTensor, mutate, random_bits
from dcr.transport.replay import replay

SHAPES = st.lists(st.integers(0, 6), max_size=3).map(tuple)
PLACED = (PathClass.SKIP, PathClass.XOR, PathClass.OVERWRITE)


@st.composite
def toy_models(draw: st.DrawFn) -> list[ToyTensor]:
    """A few tensors of any dtype, shape and placement; every second one is tied to another name."""
    tensors = []
    for number in range(draw(st.integers(1, 4))):
        dtype, shape = draw(st.sampled_from(known_dtypes())), draw(SHAPES)
        aliases = (f"tied-{number}",) if draw(st.booleans()) else ()
        spec = TensorSpec(f"tensor-{number}", shape, dtype, aliases)
        tensors.append(ToyTensor(spec, draw(st.sampled_from(list(Placement)))))
    return tensors


def audit(fleet: ToyFleet, bits: Tensors) -> AuditTable:
    return {
        name: digest_tensor(fleet.catalogue.audit_key, name, bits[spec.name])
        for spec in fleet.catalogue.tensors
        for name in (spec.name, *spec.aliases)
    }


def by_primary(fleet: ToyFleet, items: list[Item], *, aliases: bool) -> list[Item]:
    """Items of primary names, or those of aliases renamed to their primary."""
    primary = {alias: spec.name for spec in fleet.catalogue.tensors for alias in spec.aliases}
    chosen = [item for item in items if (item.name in primary) is aliases]
    return [
        Item(
            primary.get(item.name, item.name),
            item.shape,
            item.dtype,
            item.encoding,
            item.locations,
            item.values,
        )
        for item in chosen
    ]


@settings(max_examples=40)
@given(tensors=toy_models(), num_ranks=st.integers(1, 3), seed=st.integers(0, 1 << 30), data=st.data())
def test_items_are_exactly_the_dense_difference(
    tensors: list[ToyTensor], num_ranks: int, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    codec = CodecConfig(
        name=data.draw(st.sampled_from(CODECS)),
        chunk_mib=data.draw(st.integers(0, 1)),
        bucket_mib=data.draw(st.integers(0, 1)),
        threads=data.draw(st.integers(1, 2)),
        dense_share=data.draw(st.sampled_from([0.0, 0.3, 1.0])),
    )
    versions = [random_bits(tensors, rng)]
    with TemporaryDirectory() as folder:
        fleet = ToyFleet(Path(folder), tensors, versions[0], num_ranks=num_ranks, codec=codec)
        record = fleet.genesis()
        for rate in data.draw(st.lists(st.sampled_from([0.0, 0.1, 1.0]), min_size=1, max_size=3)):
            names = sorted(audit(fleet, versions[0]))
            classification = {name: data.draw(st.sampled_from(PLACED)) for name in names}
            versions.append(mutate(versions[-1], rate, rng))
            closes = fleet.refit(versions[-1], classification)
            items = fleet.items(closes)
            check_items(fleet, items, versions, classification)
            assert joined_audit(closes) == audit(fleet, versions[-1])
            differing = sum(np.count_nonzero(versions[-1][name] != old) for name, old in versions[-2].items())
            assert sum(close.num_changed for close in closes) == differing
            assert sum(close.num_elements for close in closes) == sum(
                bits.size for bits in versions[0].values()
            )
            assert equal(fleet.tracked(), versions[-1])
            record = fleet.records[-1]
        assert equal(replay(fleet.archive, record, fleet.catalogue), versions[-1])


def check_items(
    fleet: ToyFleet, items: list[Item], versions: list[Tensors], classification: dict[str, PathClass]
) -> None:
    old, new = versions[-2], versions[-1]
    assert equal(apply_items(by_primary(fleet, items, aliases=False), old), new)
    claims: Counter[tuple[str, int]] = Counter()
    for item in items:
        claims.update((item.name, int(at)) for at in item.locations)
        combines = classification.get(item.name) is PathClass.XOR
        expected = combining(fleet.codec.name, item.dtype) if combines else Encoding.OVERWRITE
        whole = len(item.locations) in shard_sizes(fleet, item.name)
        # absolute values are always right; they are chosen where a whole shard is smaller so
        assert item.encoding is expected or (item.encoding is Encoding.OVERWRITE and whole)
        assert whole or fleet.codec.dense_share > 0
        assert item.target_digest is not None
        assert item.target_digest.count == item.num_entries > 0
    assert not claims or max(claims.values()) == 1  # one owner for each element and name
    for spec in fleet.catalogue.tensors:
        for alias in spec.aliases:
            own = [item for item in items if item.name == alias]
            if classification.get(alias) in (PathClass.XOR, PathClass.OVERWRITE):
                tied = [item for item in by_primary(fleet, own, aliases=True) if item.name == spec.name]
                assert equal({spec.name: apply_items(tied, old)[spec.name]}, {spec.name: new[spec.name]})
            else:
                assert not own


def shard_sizes(fleet: ToyFleet, name: str) -> set[int]:
    """Elements of each rank's shard of the tensor."""
    tasks = [task for baseline in fleet.baselines for task in baseline.tasks]
    return {task.map.num_mapped for task in tasks if name in (task.name, *task.aliases)}


@settings(max_examples=20)
@given(tensors=toy_models(), seed=st.integers(0, 1 << 30))
def test_retry_is_complete_and_absolute(tensors: list[ToyTensor], seed: int) -> None:
    rng = np.random.default_rng(seed)
    old = random_bits(tensors, rng)
    new = mutate(old, 0.3, rng)
    with TemporaryDirectory() as folder:
        fleet = ToyFleet(Path(folder), tensors, old)
        fleet.genesis()
        fleet.write(new)
        for owner in fleet.owners:
            owner.present(1)
        free = dict.fromkeys(old, PathClass.XOR)
        first = fleet.construct(AttemptId(version=1, number=1), free)
        retry = fleet.construct(AttemptId(version=1, number=2), free, overwrite_only=True)
        items = by_primary(fleet, fleet.items(retry), aliases=False)
        assert all(item.encoding is Encoding.OVERWRITE for item in items)
        half = fleet.items(first)[::2]  # whatever part of the first attempt has landed
        mixed = apply_items(by_primary(fleet, half, aliases=False), old)
        assert equal(apply_items(items, mixed), new)
        assert [close.candidate for close in first] == [close.candidate for close in retry]


def equal(left: Tensors, right: Tensors) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)
