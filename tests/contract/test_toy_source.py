"""The toy trainer keeps the ShardSource contract."""

import numpy as np
import pytest

from dcr.errors import ConfigError
from dcr.model import TensorSpec, known_dtypes
from dcr.testing.shard_source_suite import ShardSourceContract, ShardWorld
from dcr.testing.toy_trainer import Placement, ToySource, ToyTensor, mutate, random_bits, toy_sources

TENSORS = [
    ToyTensor(TensorSpec("embed", (11, 4), "bfloat16", aliases=("head",)), Placement.ROWS),
    ToyTensor(TensorSpec("columns", (3, 5, 2), "float32"), Placement.COLUMNS),
    ToyTensor(TensorSpec("few", (2, 3), "int64"), Placement.ROWS),
    ToyTensor(TensorSpec("scalar", (), "float64"), Placement.ROWS),
    ToyTensor(TensorSpec("empty", (0, 4), "float16"), Placement.ROWS),
    *(ToyTensor(TensorSpec(f"norm-{dtype}", (3,), dtype)) for dtype in known_dtypes()),
]


class TestToySource(ShardSourceContract):
    @pytest.fixture(params=[1, 2, 4])
    def world(self, request: pytest.FixtureRequest) -> ShardWorld:
        bits = random_bits(TENSORS, np.random.default_rng(3))
        shapes = {tensor.spec.name: tensor.spec.shape for tensor in TENSORS}
        sources = toy_sources(request.param, TENSORS, bits)
        return ShardWorld(sources, {name: flat.reshape(shapes[name]) for name, flat in bits.items()})


def test_writes_move_counters_unless_silent() -> None:
    bits = random_bits(TENSORS, np.random.default_rng(3))
    source = ToySource(0, 1, TENSORS, bits)
    seen = [source.counters()]
    source.set("few", bits["few"] + np.uint64(1))
    seen.append(source.counters())
    source.set_shard("few", bits["few"], silently=True)
    assert source.counters() == seen[1] != seen[0]


def test_set_refuses_what_is_not_the_tensor() -> None:
    bits = random_bits(TENSORS, np.random.default_rng(3))
    source = ToySource(0, 1, TENSORS, bits)
    with pytest.raises(ConfigError, match="write tied tensors by their primary name"):
        source.set("head", bits["embed"])
    with pytest.raises(ConfigError, match="'few' has 6 int64 elements, got 5 uint64"):
        source.set("few", bits["few"][:5])
    with pytest.raises(ConfigError, match="rank 1 is not one of 1"):
        ToySource(1, 1, TENSORS, bits)
    with pytest.raises(ConfigError, match="no bits for tensor 'embed'"):
        ToySource(0, 1, TENSORS, {})


def test_mutate_changes_about_the_given_share() -> None:
    rng = np.random.default_rng(3)
    tensors = [ToyTensor(TensorSpec("a", (10_000,), "uint8"))]
    old = random_bits(tensors, rng)
    assert not np.count_nonzero(mutate(old, 0.0, rng)["a"] != old["a"])
    assert np.count_nonzero(mutate(old, 1.0, rng)["a"] != old["a"]) == 10_000
    assert 50 < np.count_nonzero(mutate(old, 0.01, rng)["a"] != old["a"]) < 200
