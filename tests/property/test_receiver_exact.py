"""One tensor through the hook equals a dense load, whatever its dtype, placement and changes (G1, R10)."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dcr.codec import Item
from dcr.errors import AttemptFailed
from dcr.model import Bits, Catalogue, Encoding, PathClass, TensorSpec, bits_dtype, known_dtypes
from dcr.receiver.apply import Applier
from dcr.receiver.lanes import torch_dtype
from dcr.receiver.scratch import Scratch, choose_placeholder
from dcr.testing.deltas import audit_of, delta_item, payload_of, random_bits
from dcr.testing.native_loader_suite import Way, dense_load, storage_bytes, take

KEY = "00112233445566778899aabbccddeeff"
SPECIAL_BF16 = [0x0000, 0x8000, 0x7F80, 0xFF80, 0x7FC0, 0x7FC1, 0xFFC0, 0x7F81, 0x0001, 0x807F, 0x3F80]
SHAPES = [(), (1,), (0, 3), (7,), (3, 5), (2, 3, 4)]


@dataclass
class OneTensor:
    """A runtime with one tensor ``t``, placed the way that ``kind`` says."""

    spec: TensorSpec
    kind: str

    def __post_init__(self) -> None:
        shape, dtype = self.spec.shape, torch_dtype(self.spec.dtype)
        stored = torch.float32 if self.kind == "cast" else dtype
        big = {
            "transposed": tuple(reversed(shape)),
            "strided": (*shape[:-1], shape[-1] * 2 + 1) if shape else (3,),
            "padded": (shape[0] + 2, *shape[1:]) if shape else (2,),
        }.get(self.kind, shape)
        self.memory = torch.zeros(big, dtype=stored)

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _, weight in weights:
            self._place(self.memory.data, weight)

    def resident(self) -> dict[str, torch.Tensor]:
        return {"memory": self.memory}

    def refusals(self) -> dict[str, str]:
        """Nothing beyond what the learning pass sees for itself."""
        return {}

    def skips(self, name: str) -> bool:
        return False

    def synchronize(self) -> None:
        pass

    def _place(self, memory: torch.Tensor, weight: torch.Tensor) -> None:
        if self.kind == "transposed":
            memory.copy_(weight.permute(tuple(reversed(range(weight.dim())))))
        elif self.kind == "strided":
            (memory[..., 1::2] if weight.dim() else memory[1]).copy_(weight)
        elif self.kind == "padded":
            n = weight.shape[0] if weight.dim() else 1
            (memory[1 : n + 1] if weight.dim() else memory[1]).copy_(weight)
        elif self.kind == "rows":
            for i in range(weight.shape[0] if weight.dim() else 0):
                memory[i] = weight[i]
            if not weight.dim():
                memory.copy_(weight)
        elif self.kind == "number" and weight.numel() == 1:
            memory.fill_(weight.item())
        else:
            memory.copy_(weight)


KINDS = ["whole", "transposed", "strided", "padded", "rows", "number", "cast"]


WAYS = [Way("hook", "auto"), Way("auto", "numpy"), Way("auto", "torch")]
"""Compiled loops are compared with these in ``test_scatter``; here they would cost a compilation a width."""


def exact(spec: TensorSpec, kind: str, versions: tuple[Bits, Bits], encoding: Encoding, way: Way) -> None:
    """Old dense, then the delta, equals old dense, then new dense; and old storage that was torn first."""
    catalogue = Catalogue("c" * 32, KEY, (spec,))
    runtime, oracle = OneTensor(spec, kind), OneTensor(spec, kind)
    applier = Applier(runtime, catalogue, method=way.method, engine=way.engine)
    classes = applier.prewarm()
    old, new = versions
    for version in versions:
        dense_load(oracle, catalogue, {"t": version})
    applier.restore({"t": old}, audit_of(catalogue, {"t": old}))
    allowed = classes["t"] is PathClass.XOR and (encoding is not Encoding.DELTA16 or new.itemsize == 2)
    chosen = encoding if allowed else Encoding.OVERWRITE
    for applied in (chosen, Encoding.OVERWRITE):
        take(applier, catalogue, [delta_item(KEY, spec, applied, old, new)])
        assert storage_bytes(runtime) == storage_bytes(oracle)
        assert applier.audit() == {name: d for name, d in audit_of(catalogue, {"t": new}).items() if new.size}


@st.composite
def transitions(draw: st.DrawFn) -> tuple[TensorSpec, str, Bits, Bits]:
    spec = TensorSpec("t", draw(st.sampled_from(SHAPES)), draw(st.sampled_from(known_dtypes())))
    floating = torch_dtype(spec.dtype).is_floating_point
    kind = draw(st.sampled_from(KINDS if floating else KINDS[:-1]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    old, fresh = random_bits(spec, rng), random_bits(spec, rng)
    rate = draw(st.sampled_from([0.0, 0.2, 0.9, 1.0]))
    new = np.where(rng.random(old.size) < rate, fresh, old)
    return spec, kind, old, new


@given(transitions(), st.sampled_from(list(Encoding)), st.sampled_from(WAYS))
def test_any_change_is_exact(
    transition: tuple[TensorSpec, str, Bits, Bits], encoding: Encoding, way: Way
) -> None:
    spec, kind, old, new = transition
    exact(spec, kind, (old, new), encoding, way)


@pytest.mark.parametrize("kind", KINDS)
@given(
    st.lists(st.tuples(st.sampled_from(SPECIAL_BF16), st.sampled_from(SPECIAL_BF16)), min_size=4, max_size=4),
    st.sampled_from(list(Encoding)),
    st.sampled_from(WAYS),
)
def test_special_bfloat16_values_are_exact(
    kind: str, pairs: list[tuple[int, int]], encoding: Encoding, way: Way
) -> None:
    """+0 and -0, NaN to another NaN, infinities, subnormals: bits, not values."""
    old = np.array([a for a, _ in pairs], dtype=np.uint16)
    new = np.array([b for _, b in pairs], dtype=np.uint16)
    exact(TensorSpec("t", (2, 2), "bfloat16"), kind, (old, new), encoding, way)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("kind", ["whole", "strided", "transposed"])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_every_pattern_of_a_byte_at_once(dtype: str, kind: str, way: Way) -> None:
    """No pattern is left for a placeholder."""
    num = 2 if dtype == "bool" else 256
    new = np.arange(num, dtype=np.uint8)
    old = new[::-1].copy()
    spec = TensorSpec("t", (2, num // 2), dtype)
    assert choose_placeholder(dtype, new) is None
    exact(spec, kind, (old, new), Encoding.OVERWRITE, way)


@pytest.mark.parametrize("dtype", [name for name in known_dtypes() if name != "bool"])
@given(st.integers(0, 2**32 - 1))
def test_the_placeholder_is_no_value_of_the_item(dtype: str, seed: int) -> None:
    spec = TensorSpec("t", (200,), dtype)
    values = random_bits(spec, np.random.default_rng(seed))
    preferred = choose_placeholder(dtype, values[:0])
    assert preferred is not None
    values[0] = preferred
    chosen = choose_placeholder(dtype, values)
    assert chosen is not None
    assert chosen not in values.tolist()


def test_nan_is_the_default_placeholder() -> None:
    chosen = choose_placeholder("bfloat16", np.zeros(3, dtype=np.uint16))
    assert chosen is not None
    assert torch.tensor([chosen], dtype=torch.int32).to(torch.int16).view(torch.bfloat16).isnan().all()


STEPS = st.tuples(st.integers(0, 3), st.sampled_from(list(Encoding)), st.integers(0, 99))


@given(st.lists(STEPS, max_size=12))
def test_scratch_holds_one_item_and_nothing_of_earlier_ones(steps: list[tuple[int, Encoding, int]]) -> None:
    specs = [
        TensorSpec("a", (9,), "bfloat16"),
        TensorSpec("b", (3,), "float32"),
        TensorSpec("c", (5,), "bool"),
        TensorSpec("d", (), "int64"),
    ]
    scratch = Scratch.for_tensors(tuple(specs))
    for which, encoding, seed in steps:
        spec, rng = specs[which], np.random.default_rng(seed)
        at = np.flatnonzero(rng.random(spec.num_elements) < 0.5)
        values = random_bits(spec, rng)[at]
        scratch.fill(spec, encoding, at, values)
        assert np.array_equal(scratch.bits(spec)[at], values)
        inactive = np.ones(spec.num_elements, dtype=bool)
        inactive[at] = False
        if encoding is not Encoding.OVERWRITE:
            assert not scratch.bits(spec)[inactive].any()
        else:
            view = scratch.view(spec)
            assert np.array_equal(scratch.active(view).numpy().reshape(-1), ~inactive)
        scratch.clear(spec, at)


def test_an_item_of_another_dtype_is_refused_untouched() -> None:
    """An FP32 candidate on a BF16 baseline (P15)."""
    spec = TensorSpec("t", (3,), "bfloat16")
    catalogue = Catalogue("c" * 32, KEY, (spec,))
    runtime = OneTensor(spec, "whole")
    applier = Applier(runtime, catalogue)
    applier.prewarm()
    before = storage_bytes(runtime)
    wrong = TensorSpec("t", (3,), "float32")
    item = delta_item(
        KEY, wrong, Encoding.OVERWRITE, np.zeros(3, dtype=np.uint32), np.ones(3, dtype=np.uint32)
    )
    with pytest.raises(AttemptFailed, match=r"t: the item is float32 \(3,\), the catalogue says bfloat16"):
        applier.apply(payload_of(catalogue, [item]))
    assert storage_bytes(runtime) == before


@pytest.mark.parametrize("encoding", [Encoding.XOR, Encoding.OVERWRITE])
def test_bytes_that_are_no_bool_are_refused(encoding: Encoding) -> None:
    spec = TensorSpec("t", (3,), "bool")
    catalogue = Catalogue("c" * 32, KEY, (spec,))
    applier = Applier(OneTensor(spec, "whole"), catalogue)
    applier.prewarm()
    at, values = np.array([1], dtype=np.int64), np.array([2], dtype=bits_dtype("bool"))
    with pytest.raises(AttemptFailed, match="0x2 is not the stored form of a bool"):
        applier.apply(payload_of(catalogue, [Item("t", (3,), "bool", encoding, at, values)]))
