"""What every runtime's native loader must show before deltas go through it (DESIGN R9-R13, B7).

Subclass in ``tests/contract`` and give the fixture ``case`` (a LoaderCase).
The oracle is the loader's own dense load into a second, fresh runtime; bytes are compared over
whole resident storages, padding and untouched buffers included.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import Catalogue, Encoding, PathClass
from dcr.receiver.apply import Applier
from dcr.receiver.lanes import dense_from_bits
from dcr.receiver.ports import NativeLoader
from dcr.testing.deltas import (
    Version,
    audit_of,
    changed_version,
    delta_items,
    payload_of,
    random_version,
)


@dataclass(frozen=True, slots=True)
class LoaderCase:
    """``make`` builds a fresh runtime each time, with the same geometry."""

    make: Callable[[], NativeLoader]
    catalogue: Catalogue


def storage_bytes(loader: NativeLoader) -> dict[str, bytes]:
    """The raw bytes of every resident tensor's whole storage."""
    found = {}
    for name, tensor in loader.resident().items():
        whole = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        found[name] = whole.numpy().tobytes()
    return found


def dense_load(loader: NativeLoader, catalogue: Catalogue, version: Version) -> None:
    """A dense refit by the stock loader: every canonical name, tied ones included."""
    with torch.no_grad():
        loader.load(
            (name, dense_from_bits(spec, version[spec.name].copy()))
            for spec in catalogue.tensors
            for name in (spec.name, *spec.aliases)
            if not loader.skips(name)
        )
    loader.synchronize()


def dense_bytes(case: LoaderCase, *versions: Version) -> dict[str, bytes]:
    """Storages of a fresh runtime after dense loads of ``versions``, one after another."""
    loader = case.make()
    for version in versions:
        dense_load(loader, case.catalogue, version)
    return storage_bytes(loader)


class NativeLoaderContract:
    """Deltas through the loader equal a dense refit, bit for bit."""

    @pytest.fixture
    def versions(self, case: LoaderCase) -> tuple[Version, Version]:
        """Two random versions; more than half of the elements differ."""
        rng = np.random.default_rng(7)
        old = random_version(case.catalogue, rng)
        return old, changed_version(case.catalogue, old, rng, 0.6)

    @pytest.fixture
    def at_old(self, case: LoaderCase, versions: tuple[Version, Version]) -> tuple[NativeLoader, Applier]:
        """A runtime that holds the old version, prewarmed."""
        loader = case.make()
        applier = Applier(loader, case.catalogue)
        applier.prewarm()
        dense_load(loader, case.catalogue, versions[0])
        return loader, applier

    def test_prewarm_leaves_every_byte(self, case: LoaderCase, versions: tuple[Version, Version]) -> None:
        """R11: learning suppresses every write."""
        loader = case.make()
        dense_load(loader, case.catalogue, versions[0])
        before = storage_bytes(loader)
        Applier(loader, case.catalogue).prewarm()
        assert storage_bytes(loader) == before

    def test_every_name_is_classified(self, case: LoaderCase) -> None:
        """Tied names too; nothing is refused, and some path takes XOR."""
        classes = Applier(case.make(), case.catalogue).prewarm()
        names = [name for spec in case.catalogue.tensors for name in (spec.name, *spec.aliases)]
        assert sorted(classes) == sorted(names)
        assert PathClass.REFUSED not in classes.values()
        assert PathClass.XOR in classes.values()

    def test_mixed_delta_equals_dense(
        self, case: LoaderCase, versions: tuple[Version, Version], at_old: tuple[NativeLoader, Applier]
    ) -> None:
        """Proposition 1: XOR where the path allows it, else overwrites."""
        loader, applier = at_old
        items = delta_items(case.catalogue, *versions, applier.prewarm())
        assert {Encoding.XOR} <= {item.encoding for item in items}
        applier.apply(payload_of(case.catalogue, items))
        applier.synchronize()
        applier.check()
        assert storage_bytes(loader) == dense_bytes(case, *versions)

    def test_overwrites_equal_dense_and_are_idempotent(
        self, case: LoaderCase, versions: tuple[Version, Version], at_old: tuple[NativeLoader, Applier]
    ) -> None:
        """The set of a retry, applied twice."""
        loader, applier = at_old
        payload = payload_of(case.catalogue, delta_items(case.catalogue, *versions))
        for _ in range(2):
            applier.apply(payload, allow_xor=False)
            applier.check()
            assert storage_bytes(loader) == dense_bytes(case, *versions)

    def test_retry_by_overwrites_repairs_torn_storage(
        self, case: LoaderCase, versions: tuple[Version, Version], at_old: tuple[NativeLoader, Applier]
    ) -> None:
        """R14: what a failed attempt wrote does not matter."""
        loader, applier = at_old
        mixed = delta_items(case.catalogue, *versions, applier.prewarm())
        applier.apply(payload_of(case.catalogue, mixed[:-1]))
        assert storage_bytes(loader) not in (dense_bytes(case, versions[0]), dense_bytes(case, *versions))
        applier.begin()
        applier.apply(payload_of(case.catalogue, delta_items(case.catalogue, *versions)), allow_xor=False)
        applier.check()
        assert storage_bytes(loader) == dense_bytes(case, *versions)

    def test_xor_twice_is_caught_by_the_check(
        self, case: LoaderCase, versions: tuple[Version, Version], at_old: tuple[NativeLoader, Applier]
    ) -> None:
        """R13: the digest is of the target bits, so a mask applied twice shows."""
        _, applier = at_old
        payload = payload_of(case.catalogue, delta_items(case.catalogue, *versions, applier.prewarm()))
        applier.apply(payload)
        applier.apply(payload)
        with pytest.raises(AttemptFailed, match="audit digest"):
            applier.check()

    def test_xor_is_refused_on_torn_storage(
        self, case: LoaderCase, versions: tuple[Version, Version], at_old: tuple[NativeLoader, Applier]
    ) -> None:
        """P8: before anything is touched."""
        loader, applier = at_old
        before = storage_bytes(loader)
        payload = payload_of(case.catalogue, delta_items(case.catalogue, *versions, applier.prewarm()))
        with pytest.raises(AttemptFailed, match="torn"):
            applier.apply(payload, allow_xor=False)
        assert storage_bytes(loader) == before

    def test_skipped_items_change_nothing(
        self, case: LoaderCase, versions: tuple[Version, Version], at_old: tuple[NativeLoader, Applier]
    ) -> None:
        """R12: an explicit skip is counted, not written."""
        loader, applier = at_old
        skipped = {name for name, kind in applier.prewarm().items() if kind is PathClass.SKIP}
        items = [item for item in delta_items(case.catalogue, *versions) if item.name in skipped]
        before = storage_bytes(loader)
        stats = applier.apply(payload_of(case.catalogue, items))
        assert (stats.num_items, stats.num_skipped, stats.num_values) == (len(items), len(items), 0)
        assert storage_bytes(loader) == before

    def test_restore_loads_and_proves(self, case: LoaderCase, versions: tuple[Version, Version]) -> None:
        """R15: a dense load by the stock loader."""
        loader = case.make()
        applier = Applier(loader, case.catalogue)
        applier.prewarm()
        applier.restore(versions[1], audit_of(case.catalogue, versions[1]))
        assert storage_bytes(loader) == dense_bytes(case, versions[1])

    def test_restore_of_other_bits_is_caught(
        self, case: LoaderCase, versions: tuple[Version, Version]
    ) -> None:
        """The record's table decides what a version is."""
        applier = Applier(case.make(), case.catalogue)
        applier.prewarm()
        with pytest.raises(IntegrityError, match="audit digest"):
            applier.restore(versions[0], audit_of(case.catalogue, versions[1]))

    def test_read_back_gives_the_canonical_bits(
        self, case: LoaderCase, versions: tuple[Version, Version], at_old: tuple[NativeLoader, Applier]
    ) -> None:
        """B6: the resident digests are those of the canonical tensors."""
        _, applier = at_old
        table = applier.placement.audit_table(case.catalogue.audit_key)
        expected = audit_of(case.catalogue, versions[0])
        assert table
        assert table == {name: expected[name] for name in table}
