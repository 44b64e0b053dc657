"""What every runtime's native loader must show before deltas go through it (DESIGN R9-R13, B2, B7).

Subclass in ``tests/contract`` and give the fixture ``case`` (a LoaderCase).
The oracle is the loader's own dense load into a second, fresh runtime; bytes are compared over
whole resident storages, padding and untouched buffers included. Everything is shown for the dispatch
hook and for every engine of the learned placement.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pytest
import torch

from dcr.audit import combine
from dcr.codec import Item
from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import Catalogue, Encoding, PathClass
from dcr.receiver.apply import Applier
from dcr.receiver.lanes import dense_from_bits
from dcr.receiver.methods import MethodName
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import Method
from dcr.receiver.scatter.engine import EngineName
from dcr.receiver.writer import Slice
from dcr.testing.deltas import (
    Version,
    audit_of,
    changed_version,
    delta_items,
    payload_of,
    random_version,
)

DIFFERENCES = (Encoding.XOR, Encoding.DELTA16)
Versions: TypeAlias = tuple[Version, Version]
"""The old one and the new one."""
AtOld: TypeAlias = tuple[NativeLoader, Applier]
"""A runtime that holds the old version, and what applies to it."""


@dataclass(frozen=True, slots=True)
class LoaderCase:
    """``make`` builds a fresh runtime each time, with the same geometry."""

    make: Callable[[], NativeLoader]
    catalogue: Catalogue


@dataclass(frozen=True, slots=True)
class Way:
    """How changes are to reach storage."""

    method: MethodName
    engine: EngineName


WAYS = {
    "hook": Way("hook", "auto"),
    "numpy": Way("auto", "numpy"),
    "numba": Way("auto", "numba"),
    "torch": Way("auto", "torch"),
}


def storage_bytes(loader: NativeLoader) -> dict[str, bytes]:
    """The raw bytes of every resident tensor's whole storage."""
    found = {}
    for name, tensor in loader.resident().items():
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
        found[name] = whole.cpu().numpy().tobytes()
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


def take(applier: Applier, catalogue: Catalogue, items: list[Item], *, allow_xor: bool = True) -> None:
    """A whole attempt: begin, apply one payload, synchronize, check."""
    applier.begin(clean=allow_xor)
    applier.apply(payload_of(catalogue, items), allow_xor=allow_xor)
    applier.synchronize()
    applier.check()


class NativeLoaderContract:
    """Deltas through the loader equal a dense refit, bit for bit."""

    @pytest.fixture
    def versions(self, case: LoaderCase) -> Versions:
        """Two random versions; more than half of the elements differ."""
        rng = np.random.default_rng(7)
        old = random_version(case.catalogue, rng)
        return old, changed_version(case.catalogue, old, rng, 0.6)

    @pytest.fixture(params=list(WAYS))
    def way(self, request: pytest.FixtureRequest) -> Way:
        """Hook, or learned placement with one engine."""
        return WAYS[request.param]

    @pytest.fixture
    def at_old(self, case: LoaderCase, versions: Versions, way: Way) -> AtOld:
        """A runtime that holds the old version, prewarmed."""
        loader = case.make()
        applier = Applier(loader, case.catalogue, method=way.method, engine=way.engine)
        applier.prewarm()
        applier.restore(versions[0], audit_of(case.catalogue, versions[0]))
        return loader, applier

    @pytest.fixture(params=DIFFERENCES)
    def difference(self, request: pytest.FixtureRequest) -> Encoding:
        """How values are sent where the path allows it."""
        return Encoding(request.param)

    @pytest.fixture
    def mixed(self, case: LoaderCase, versions: Versions, at_old: AtOld, difference: Encoding) -> list[Item]:
        """What a first attempt sends: ``difference`` where the path allows it, else overwrites."""
        return delta_items(case.catalogue, *versions, at_old[1].prewarm(), difference=difference)

    def test_prewarm_leaves_every_byte(self, case: LoaderCase, versions: Versions) -> None:
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

    def test_the_way_is_taken(self, way: Way, at_old: AtOld) -> None:
        """The other tests show nothing about a method that no tensor goes."""
        methods = {path.method for path in at_old[1].rank.map.paths.values()}
        assert (Method.HOOK in methods, Method.LEARNED in methods) == (
            way.method == "hook",
            way.method == "auto",
        )

    def test_mixed_delta_equals_dense(
        self,
        case: LoaderCase,
        versions: Versions,
        at_old: AtOld,
        mixed: list[Item],
        difference: Encoding,
    ) -> None:
        """Proposition 1: masks or differences where the path allows them, else overwrites."""
        loader, applier = at_old
        assert {difference} <= {item.encoding for item in mixed}
        take(applier, case.catalogue, mixed)
        assert storage_bytes(loader) == dense_bytes(case, *versions)
        assert applier.audit().items() <= audit_of(case.catalogue, versions[1]).items()

    def test_overwrites_equal_dense_and_are_idempotent(
        self, case: LoaderCase, versions: Versions, at_old: AtOld
    ) -> None:
        """The set of a retry, applied twice."""
        loader, applier = at_old
        for _ in range(2):
            take(applier, case.catalogue, delta_items(case.catalogue, *versions), allow_xor=False)
            assert storage_bytes(loader) == dense_bytes(case, *versions)

    def test_retry_by_overwrites_repairs_torn_storage(
        self, case: LoaderCase, versions: Versions, at_old: AtOld, mixed: list[Item]
    ) -> None:
        """R14: what a failed attempt wrote does not matter, nor by which way."""
        loader, applier = at_old
        applier.begin(clean=True)
        applier.apply(payload_of(case.catalogue, mixed[:-1]))
        assert storage_bytes(loader) not in (dense_bytes(case, versions[0]), dense_bytes(case, *versions))
        take(applier, case.catalogue, delta_items(case.catalogue, *versions), allow_xor=False)
        assert storage_bytes(loader) == dense_bytes(case, *versions)

    def test_a_difference_twice_is_caught_by_the_check(
        self, case: LoaderCase, at_old: AtOld, mixed: list[Item], difference: Encoding
    ) -> None:
        """R13: the digest is of the target bits, so a mask applied twice shows."""
        _, applier = at_old
        applier.begin(clean=True)
        applier.apply(payload_of(case.catalogue, mixed))
        with pytest.raises(AttemptFailed, match="audit digest"):
            take(applier, case.catalogue, [item for item in mixed if item.encoding is difference])

    def test_a_difference_is_refused_on_torn_storage(
        self, case: LoaderCase, at_old: AtOld, mixed: list[Item]
    ) -> None:
        """P8: before anything is touched."""
        loader, applier = at_old
        before = storage_bytes(loader)
        with pytest.raises(AttemptFailed, match="torn"):
            applier.apply(payload_of(case.catalogue, mixed), allow_xor=False)
        assert storage_bytes(loader) == before

    def test_skipped_items_change_nothing(self, case: LoaderCase, versions: Versions, at_old: AtOld) -> None:
        """R12: an explicit skip is counted, not written."""
        loader, applier = at_old
        skipped = {name for name, kind in applier.prewarm().items() if kind is PathClass.SKIP}
        items = [item for item in delta_items(case.catalogue, *versions) if item.name in skipped]
        before = storage_bytes(loader)
        applier.begin(clean=True)
        stats = applier.apply(payload_of(case.catalogue, items))
        assert (stats.num_items, stats.num_skipped, stats.num_values) == (len(items), len(items), 0)
        assert storage_bytes(loader) == before

    def test_restore_loads_and_proves(self, case: LoaderCase, versions: Versions) -> None:
        """R15: a dense load by the stock loader."""
        loader = case.make()
        applier = Applier(loader, case.catalogue)
        applier.prewarm()
        applier.restore(versions[1], audit_of(case.catalogue, versions[1]))
        assert storage_bytes(loader) == dense_bytes(case, versions[1])

    def test_restore_of_other_bits_is_caught(self, case: LoaderCase, versions: Versions) -> None:
        """The record's table decides what a version is."""
        applier = Applier(case.make(), case.catalogue)
        applier.prewarm()
        with pytest.raises(IntegrityError, match="audit digest"):
            applier.restore(versions[0], audit_of(case.catalogue, versions[1]))

    def test_every_flipped_bit_is_seen(self, case: LoaderCase, versions: Versions, at_old: AtOld) -> None:
        """B6: in each resident tensor that the loader fills, wherever the bit lies."""
        loader, applier = at_old
        expected = audit_of(case.catalogue, versions[0])
        assert applier.audit().items() <= expected.items()
        filled = _filled_bytes(case, versions[0])
        for name, tensor in loader.resident().items():
            raw = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            for at in sorted({filled[name][0], filled[name][-1]}) if filled[name] else []:
                raw[at] ^= 4
                assert _is_noticed(applier, expected), f"byte {at} of {name}"
                raw[at] ^= 4
        assert applier.audit().items() <= expected.items()

    def test_pieces_digest_as_the_whole(self, case: LoaderCase, versions: Versions, at_old: AtOld) -> None:
        """A scan in slices adds up to the committed table."""
        _, applier = at_old
        for name, digest in applier.audit().items():
            size = case.catalogue.by_name()[name].num_elements
            cuts = sorted({0, size // 3, 2 * size // 3, size})
            pieces = [Slice(name, a, b) for a, b in pairwise(cuts)]
            assert combine(*applier.scan(pieces)) == digest == audit_of(case.catalogue, versions[0])[name]


def _filled_bytes(case: LoaderCase, version: Version) -> dict[str, list[int]]:
    """Bytes of each resident storage that a dense load decides: equal over two different beginnings."""
    stained = []
    for stain in (0x55, 0xAA):
        loader = case.make()
        for tensor in loader.resident().values():
            torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).fill_(stain)
        dense_load(loader, case.catalogue, version)
        stained.append(storage_bytes(loader))
    return {name: [i for i, (a, b) in enumerate(zip(raw, stained[1][name], strict=True)) if a == b]
            for name, raw in stained[0].items()}  # fmt: skip


def _is_noticed(applier: Applier, expected: object) -> bool:
    try:
        return not applier.audit().items() <= expected.items()  # type: ignore[attr-defined]
    except IntegrityError:
        return True
