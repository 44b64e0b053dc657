"""Whether a learned placement is right: a reference scatter against the loader's own dense load (B2).

``check_placement`` works on any loader: lanes call it for real runtimes. ``TortureContract`` runs the
patterns of ``dcr.testing.torture_patterns``; subclass it where another torch is to be tried.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from dcr.errors import UnsupportedPath
from dcr.model import Bits, Catalogue, Encoding, PathClass, TensorSpec, stored_bits
from dcr.receiver.apply import Applier
from dcr.receiver.join import join
from dcr.receiver.landing import Landing
from dcr.receiver.lanes import dense_from_bits, lanes, torch_dtype
from dcr.receiver.methods import RankMap
from dcr.receiver.placement import PlacementTable
from dcr.receiver.ports import NativeLoader
from dcr.receiver.prewarm import learn
from dcr.receiver.rank import Method
from dcr.testing.deltas import Version, audit_of, delta_items, payload_of
from dcr.testing.native_loader_suite import LoaderCase, dense_bytes, dense_load, storage_bytes
from dcr.testing.torture import Pattern, TortureRuntime
from dcr.testing.torture_patterns import HOOKED, LEARNED, WHOLE, WRONG


def tame_version(catalogue: Catalogue, rng: np.random.Generator) -> Version:
    """Random values of a few units: no NaN, which casts treat by position, and nothing huge."""
    return {spec.name: _tame(spec, rng) for spec in catalogue.tensors}


def _tame(spec: TensorSpec, rng: np.random.Generator) -> Bits:
    values = torch.from_numpy(rng.normal(0, 2, spec.num_elements))
    return stored_bits(values.to(torch_dtype(spec.dtype)))


def check_placement(make: Callable[[], NativeLoader], catalogue: Catalogue, seed: int = 0) -> PlacementTable:
    """Learn, move from one version to another through the table, and compare with dense loads.

    Of a partial rank too: what matters is every byte of the rank's storages. XOR masks go where the
    path class allows them, absolute values elsewhere; what is not learned goes through the plain loader.
    """
    rng = np.random.default_rng(seed)
    old, new = tame_version(catalogue, rng), tame_version(catalogue, rng)
    loader = make()
    before = storage_bytes(loader)
    table = learn(loader, catalogue)
    assert storage_bytes(loader) == before, "learning changed storage"
    assert not table.refusals
    dense_load(loader, catalogue, old)
    scatter(table, old, new)
    whole = [name for name, path in table.paths.items() if path.method in (Method.HOOK, Method.WHOLE)]
    with torch.no_grad():
        loader.load(_dense(table, whole, new))
    loader.synchronize()
    expected = make()
    dense_load(expected, catalogue, old)
    dense_load(expected, catalogue, new)
    changed = storage_bytes(expected)
    assert [n for n, raw in storage_bytes(loader).items() if raw != changed[n]] == []
    assert table.storages.moved(loader.resident()) is None
    return table


def check_refits(
    make: Callable[[], NativeLoader], catalogue: Catalogue, first: Version | None = None, seed: int = 0
) -> RankMap:
    """Restore version ``first`` (else a tame one), refit it with XOR and DELTA16, and compare every byte.

    The runtime is an instance of its own; what it cannot take as a difference goes as overwrites.
    """
    rng = np.random.default_rng(seed)
    loader = make()
    writer = Applier(loader, catalogue)
    writer.prewarm()
    versions = [first or tame_version(catalogue, rng)]
    writer.restore({n: bits.copy() for n, bits in versions[0].items()}, audit_of(catalogue, versions[0]))
    for difference in (Encoding.XOR, Encoding.DELTA16):
        old, drawn = versions[-1], tame_version(catalogue, rng)
        versions.append({n: np.where(rng.random(b.size) < 0.3, drawn[n], b) for n, b in old.items()})
        items = delta_items(catalogue, old, versions[-1], writer.prewarm(), difference=difference)
        writer.begin(clean=True)
        writer.apply(payload_of(catalogue, items))
        writer.synchronize()
        writer.check()
        assert writer.audit().items() <= audit_of(catalogue, versions[-1]).items()
        dense = dense_bytes(LoaderCase(make, catalogue), *versions)
        assert [n for n, raw in storage_bytes(loader).items() if raw != dense[n]] == []
    return writer.rank.map


def scatter(table: PlacementTable, old: Version, new: Version) -> None:
    """Write every element of the LEARNED tensors where it lands, the slow and obvious way."""
    for name, landings in table.landings.items():
        spec = table.specs[name]
        exact = table.paths[name].path is PathClass.XOR
        bits = old[spec.name] ^ new[spec.name] if exact else new[spec.name]
        flat = dense_from_bits(spec, bits.copy()).reshape(-1)
        for landing in landings:
            target, source = target_of(table, landing), _source_of(landing, flat)
            if exact:
                lanes(target).bitwise_xor_(lanes(source))
            elif landing.preserving:
                lanes(target).copy_(lanes(source))
            else:
                target.copy_(source)


def target_of(table: PlacementTable, landing: Landing) -> torch.Tensor:
    """Live view of where ``landing`` lands."""
    box = landing.box
    flat = table.storages.flat(landing.storage, landing.dtype)
    return flat.as_strided(box.shape, box.dst_strides, box.dst_offset)


def _source_of(landing: Landing, flat: torch.Tensor) -> torch.Tensor:
    box = landing.box
    bits = flat if not landing.preserving else flat.view(_same_width(flat.dtype, landing.dtype))
    return bits.as_strided(box.shape, box.src_strides, box.src_offset)


def _same_width(dtype: torch.dtype, landed: torch.dtype) -> torch.dtype:
    assert dtype.itemsize == landed.itemsize
    return landed


def _dense(table: PlacementTable, names: list[str], version: Version) -> Iterator[tuple[str, torch.Tensor]]:
    for name in names:
        spec = table.specs[name]
        yield name, dense_from_bits(spec, version[spec.name].copy())


def require_supported(table: PlacementTable) -> None:
    """Raise what a single rank refuses, incomplete tensors included."""
    join([table.rank_placement], table.specs).require_supported()


class TortureContract:
    """Each pattern is mapped, or taken whole, with the result of a dense load; or refused by its reason."""

    @pytest.mark.parametrize("pattern", [*LEARNED, *HOOKED, *WHOLE], ids=lambda pattern: pattern.name)
    def test_equals_a_dense_load(self, pattern: Pattern) -> None:
        """Method and path class are the expected ones, and storage ends byte for byte as by dense loads."""
        table = check_placement(lambda: TortureRuntime(pattern), pattern.catalogue)
        require_supported(table)
        assert (table.paths["w"].method, table.paths["w"].path) == (pattern.method, pattern.path)
        assert table.paths["n"].method is Method.LEARNED
        assert ("w" in table.together) is (pattern.method is Method.WHOLE)
        assert bool(table.paths["w"].reason) is (pattern.method is not Method.LEARNED)

    @pytest.mark.parametrize("pattern", [*LEARNED, *HOOKED, *WHOLE], ids=lambda pattern: pattern.name)
    def test_restored_and_refitted(self, pattern: Pattern) -> None:
        """A rank of it is restored, refitted and audited; every byte is that of dense loads, each time."""
        refitted = TortureRuntime(pattern)
        made = iter([refitted])
        check_refits(lambda: next(made, None) or TortureRuntime(pattern), pattern.catalogue)
        if "number" in refitted.state:
            assert refitted.state["number"] == refitted["single"].item()

    @pytest.mark.parametrize("pattern", WRONG, ids=lambda pattern: pattern.name)
    def test_refused_in_advance(self, pattern: Pattern) -> None:
        """By name and reason; storage is as before, unless the reason says that this was out of reach."""
        loader = TortureRuntime(pattern)
        dense_load_random(loader)
        before = storage_bytes(loader)
        with pytest.raises(UnsupportedPath, match=pattern.refusal):
            require_supported(learn(loader, pattern.catalogue))
        if not any(words in pattern.refusal for words in ("past the dispatch hook", "cannot be put back")):
            assert storage_bytes(loader) == before


def dense_load_random(loader: TortureRuntime) -> None:
    """Some contents in every resident tensor, whether the loader would write it or not."""
    generator = torch.Generator().manual_seed(1)
    for tensor in loader.tensors.values():
        if tensor.is_floating_point():
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
