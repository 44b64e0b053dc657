"""Instances of several ranks against the dense oracle: exact, and no element of any rank goes unproven."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcr.audit import digest_at
from dcr.codec import Item
from dcr.errors import AttemptFailed, IntegrityError, UnsupportedPath
from dcr.model import Encoding, PathClass
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.writer import Slice
from dcr.testing.deltas import Version, audit_of, changed_version, delta_item, payload_of, random_version
from dcr.testing.toy_parallel import catalogue
from dcr.testing.toy_rank import ToyRank, toy_ranks

CATALOGUE = catalogue()
ENCODINGS = (Encoding.XOR, Encoding.DELTA16, Encoding.OVERWRITE)


@contextmanager
def instance(num_ranks: int, version: Version) -> Iterator[tuple[InstanceWriter, list[ToyRank]]]:
    """A prewarmed instance that holds ``version``."""
    ranks = toy_ranks(num_ranks)
    writer = InstanceWriter(ranks, CATALOGUE)
    writer.prewarm()
    writer.restore(version, audit_of(CATALOGUE, version))
    try:
        yield writer, ranks
    finally:
        writer.close()


def version(seed: int) -> Version:
    """Random bits."""
    return random_version(CATALOGUE, np.random.default_rng(seed))


def flipped(version: Version) -> Version:
    """The lowest bit of every element."""
    return {name: np.bitwise_xor(bits, bits.dtype.type(1)) for name, bits in version.items()}


def items(old: Version, new: Version, encoding: Encoding) -> list[Item]:
    """Of every changed tensor, by its primary name."""
    found = []
    for spec in CATALOGUE.tensors:
        kind = Encoding.XOR if encoding is Encoding.DELTA16 and spec.dtype == "float32" else encoding
        found.append(delta_item(CATALOGUE.audit_key, spec, kind, old[spec.name], new[spec.name]))
    return found


def holds(ranks: list[ToyRank], wanted: Version) -> bool:
    """Every copy of every rank, element by element."""
    return all(
        np.array_equal(copy.bits, wanted[name][copy.index])
        for rank in ranks
        for name, copies in rank.copies.items()
        for copy in copies
    )


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([1, 2, 3, 4]),
    st.integers(0, 99),
    st.sampled_from([0.0, 0.02, 0.5]),
    st.lists(st.sampled_from(ENCODINGS), min_size=1, max_size=3),
)
def test_refits_are_exact_and_proven(
    num_ranks: int, seed: int, rate: float, encodings: list[Encoding]
) -> None:
    """After each refit all copies hold the new bits, and the joint table is the source's own."""
    old, rng = version(seed), np.random.default_rng(seed)
    with instance(num_ranks, old) as (writer, ranks):
        for encoding in encodings:
            new = changed_version(CATALOGUE, old, rng, rate)
            writer.begin(clean=True)
            writer.apply(payload_of(CATALOGUE, items(old, new, encoding)))
            writer.synchronize()
            writer.check()
            old = new
            assert holds(ranks, new)
        table = audit_of(CATALOGUE, old)
        del table["head.weight"]  # skipped on every rank
        assert writer.audit() == table


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_one_flipped_bit_on_any_rank_is_found(num_ranks: int) -> None:
    """Of every element of every copy, replicas included: by audit and by the scan of its tensor."""
    base = version(1)
    table = audit_of(CATALOGUE, base)
    with instance(num_ranks, base) as (writer, ranks):
        for rank in ranks:
            for name, copies in rank.copies.items():
                for copy in copies:
                    for i in range(0, copy.bits.size, 5):
                        copy.bits[i] ^= 1
                        assert _found(writer, name, base, int(copy.index[i])), (rank.rank, name, i)
                        copy.bits[i] ^= 1
        assert writer.audit().items() <= table.items()


def _found(writer: InstanceWriter, name: str, base: Version, index: int) -> bool:
    """Whether scanning that one element, and auditing everything, both see it."""
    here, size = np.array([index]), base[name].size
    try:
        rest, digest = writer.scan([Slice(name, index + 1, size), Slice(name, index, index + 1)])
    except IntegrityError as err:
        return str(err).startswith(f"{name}: ")
    assert rest == digest_at(CATALOGUE.audit_key, name, np.arange(index + 1, size), base[name][index + 1 :])
    table = audit_of(CATALOGUE, base)
    return digest != digest_at(CATALOGUE.audit_key, name, here, base[name][here]) and (
        writer.audit()[name] != table[name]
    )


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_lost_write_fails_the_check(encoding: Encoding) -> None:
    """Whichever rank and copy misses whichever entry, the check names the tensor."""
    old = version(2)
    new = flipped(old)
    with instance(3, old) as (writer, ranks):
        for rank in ranks:
            for name, copies in rank.copies.items():
                for copy in copies:
                    writer.begin(clean=True)
                    writer.apply(payload_of(CATALOGUE, items(old, new, encoding)))
                    copy.bits[-1] ^= 1
                    with pytest.raises(AttemptFailed, match=f"{name}: .*(rank|copies)"):
                        writer.check()
                    copy.bits[-1] ^= 1
                    writer.check()
                    writer.restore(old, audit_of(CATALOGUE, old))


def test_a_write_that_no_item_asked_for_is_found_where_items_are_checked() -> None:
    """The count of a partial digest matters too: an element that no rank answers for is a failure."""
    old = version(3)
    new = flipped(old)
    with instance(2, old) as (writer, ranks):
        writer.begin(clean=True)
        writer.apply(payload_of(CATALOGUE, items(old, new, Encoding.OVERWRITE)))
        ranks[1].copies["q.weight"][0].index[-1] = 10**6  # it loses sight of one element
        with pytest.raises(AttemptFailed, match=r"q.weight: written bits on ranks"):
            writer.check()


def test_the_class_is_the_most_restrictive_and_holes_are_counted() -> None:
    """A rank that holds nothing does not restrict; a rank that is missing leaves a hole, which is named."""
    ranks = toy_ranks(3)
    classes = InstanceWriter(ranks, CATALOGUE).prewarm()
    assert classes["head.weight"] is PathClass.SKIP
    assert classes["expert.0.weight"] is PathClass.XOR
    with pytest.raises(UnsupportedPath, match=r"q.weight: 48 of its 144 elements lie on none of 2 ranks"):
        InstanceWriter(ranks[1:], CATALOGUE).prewarm()
    with pytest.raises(UnsupportedPath, match=r"expert.0.weight: no rank places it, and ranks \[0, 1\]"):
        InstanceWriter(ranks[1:], CATALOGUE).prewarm()


def test_all_refusals_of_all_ranks_are_told_at_once() -> None:
    """With tensor, rank and reason."""
    ranks = toy_ranks(2)
    ranks[0].refusals["q.weight"] = "it is quantised; load it unquantised"
    ranks[1].refusals["o.weight"] = "its backend re-blocks it; choose another"
    with pytest.raises(UnsupportedPath) as caught:
        InstanceWriter(ranks, CATALOGUE).prewarm()
    assert "q.weight (rank 0 of 2): it is quantised" in str(caught.value)
    assert "o.weight (rank 1 of 2): its backend re-blocks it" in str(caught.value)


def test_one_failing_rank_fails_the_attempt_and_all_are_awaited() -> None:
    """The gravest failure decides the class; every rank's own words are in it."""
    old = version(4)
    with instance(3, old) as (writer, ranks):
        writer.begin(clean=True)
        ranks[0].fails["apply"] = AttemptFailed("q.weight: a write went astray")
        ranks[2].fails["apply"] = RuntimeError("out of memory")
        with pytest.raises(AttemptFailed, match=r"astray \(rank 0\); RuntimeError: out of memory \(rank 2\)"):
            writer.apply(payload_of(CATALOGUE, items(old, version(5), Encoding.XOR)))
        assert ranks[1].log.count("apply") > 1
        ranks[1].fails["audit"] = IntegrityError("k.weight: two copies differ")
        with pytest.raises(IntegrityError, match=r"k.weight: two copies differ \(rank 1\)"):
            writer.audit()


def test_restoring_other_bits_than_the_record_is_refused() -> None:
    """Also where only one replica is wrong."""
    base = version(6)
    table = audit_of(CATALOGUE, base)
    with instance(2, base) as (writer, ranks):
        wrong = dict(base, **{"o.weight": flipped(base)["o.weight"]})
        with pytest.raises(IntegrityError, match=r"o.weight: restored bits on ranks \[0, 1\]"):
            writer.restore(wrong, table)
        del ranks[1].copies["norm.weight"]
        with pytest.raises(IntegrityError, match=r"norm.weight: rank 1 read back 0 of the 1 parts"):
            writer.restore(base, table)


def test_rebuilt_storage_is_learned_anew() -> None:
    """Prewarm is remembered until then; only an explicit begin on it fails."""
    base = version(7)
    with instance(2, base) as (writer, ranks):
        writer.prewarm()
        assert [rank.num_prewarms for rank in ranks] == [1, 1]
        ranks[1].rebuild()
        assert writer.rebuilt() == "rank 1: resident 'qk' moved"
        with pytest.raises(AttemptFailed, match="moved"):
            writer.begin(clean=True)
        writer.prewarm()
        assert [rank.num_prewarms for rank in ranks] == [1, 2]
        assert writer.audit().items() <= audit_of(CATALOGUE, base).items()


def test_people_are_told_how_each_rank_takes_each_tensor() -> None:
    """Names that lie elsewhere are not listed; bytes are those that lie on the rank."""
    with instance(2, version(8)) as (writer, _):
        first, second = writer.diagnose()
        assert first.tensors["q.weight"].num_bytes == 6 * 12 * 2
        assert first.tensors["mixer.in.weight"].num_bytes == 9 * 12 * 2
        assert first.tensors["expert.1.weight"].num_bytes == 3 * 12 * 2  # two copies, counted once
        assert "expert.0.weight" not in second.tensors
        assert {choice.method for choice in second.tensors.values()} == {"learned"}
