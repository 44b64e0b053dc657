"""Detection against a bytewise oracle, on every engine and any number of threads (DESIGN R2)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcr.errors import ConfigError
from dcr.model import stored_bits
from dcr.source import changed_indices
from dcr.source.detect import MIN_ELEMENTS, MIN_PART_BYTES, Changes, Engine, find_changes, find_few_changes
from dcr.source.scan_compiled import LANES
from dcr.source.scan_torch import find as find_on_device

ENGINES: tuple[Engine, ...] = ("compiled", "numpy", "torch", "auto")
WIDTHS = st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64])
SIZES = st.one_of(st.integers(0, 3 * LANES), st.integers(0, 9000))


def oracle(candidate: np.ndarray, baseline: np.ndarray) -> list[int]:
    width = candidate.dtype.itemsize
    left, right = candidate.tobytes(), baseline.tobytes()
    starts = range(0, len(left), width)
    return [at // width for at in starts if left[at : at + width] != right[at : at + width]]


def changed(baseline: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    masks = rng.integers(1, np.iinfo(baseline.dtype).max, baseline.size, baseline.dtype, endpoint=True)
    hit = rng.random(baseline.size) < rate
    return np.where(hit, baseline ^ masks, baseline).astype(baseline.dtype)


def assert_found(found: Changes, candidate: np.ndarray, baseline: np.ndarray, expected: list[int]) -> None:
    assert found.local.dtype == np.int64
    assert found.local.tolist() == expected
    assert found.old.dtype == found.new.dtype == baseline.dtype
    assert found.old.tolist() == baseline[expected].tolist()
    assert found.new.tolist() == candidate[expected].tolist()


@settings(max_examples=60)
@given(width=WIDTHS, size=SIZES, rate=st.sampled_from([0, 0.001, 0.03, 0.3, 1]),
       offset=st.integers(0, 8), seed=st.integers(0, 1 << 30))  # fmt: skip
def test_every_engine_finds_exactly_the_changed_elements(
    width: type, size: int, rate: float, offset: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    itemsize = np.dtype(width).itemsize
    raw = rng.integers(0, 256, size * itemsize + 16, np.uint8)
    # also starts where no element of this width would
    baseline: np.ndarray = raw[offset : offset + size * itemsize].view(width)
    candidate = changed(baseline, rate, rng)
    baseline.flags.writeable = False
    expected = oracle(candidate, baseline)
    for engine in ENGINES:
        found = changed_indices(candidate, baseline, engine=engine)
        assert found.dtype == np.int64
        assert found.tolist() == expected
        assert_found(find_changes(candidate, baseline, engine=engine), candidate, baseline, expected)


@pytest.mark.parametrize("width", [np.uint8, np.uint16, np.uint32, np.uint64])
def test_threads_find_the_same(width: type) -> None:
    rng = np.random.default_rng(5)
    size = (3 * MIN_PART_BYTES + 8) // np.dtype(width).itemsize + 1
    baseline: np.ndarray = rng.integers(0, 256, size * np.dtype(width).itemsize, np.uint8).view(width)
    candidate = changed(baseline, 0.01, rng)
    expected = np.flatnonzero(candidate != baseline)
    for threads in (0, 1, 2, 3, 7):
        found = find_changes(candidate, baseline, threads=threads)
        assert np.array_equal(found.local, expected)
        assert np.array_equal(found.old, baseline[expected])
        assert np.array_equal(found.new, candidate[expected])
        assert np.array_equal(changed_indices(candidate, baseline, threads=threads), expected)


@pytest.mark.parametrize("shares", [(0.0, 1.0), (1.0, 0.0), (0.001, 0.5), (0.2, 0.02), (1.0, 1.0)])
def test_output_grows_when_the_rate_was_guessed_wrong(shares: tuple[float, float]) -> None:
    rng = np.random.default_rng(1)
    baseline = rng.integers(0, 1 << 16, 40_003, np.uint16)
    candidate = np.concatenate(
        [changed(part, rate, rng) for part, rate in zip(np.array_split(baseline, 2), shares, strict=True)]
    )
    expected = np.flatnonzero(candidate != baseline).tolist()
    assert changed_indices(candidate, baseline, engine="compiled").tolist() == expected
    found = find_changes(candidate, baseline, engine="compiled")
    assert_found(found, candidate, baseline, expected)
    assert found.local.base is None, "what is kept has no unused memory behind it"


@given(size=st.integers(0, 9000), rate=st.sampled_from([0, 0.01, 0.3, 1]), limit=st.integers(0, 9000),
       seed=st.integers(0, 1 << 30))  # fmt: skip
@settings(max_examples=60)
def test_a_search_ends_beyond_its_limit_and_never_before(
    size: int, rate: float, limit: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    baseline = rng.integers(0, 1 << 16, size, np.uint16)
    candidate = changed(baseline, rate, rng)
    expected = np.flatnonzero(candidate != baseline).tolist()
    for engine in ENGINES:
        found = find_few_changes(candidate, baseline, limit, engine=engine)
        if len(expected) > limit:
            assert found is None
        else:
            assert found is not None
            assert_found(found, candidate, baseline, expected)


def test_words_and_their_edges_join_without_gap_or_overlap() -> None:
    size = 2 * MIN_ELEMENTS + LANES + 3
    baseline = np.zeros(size, np.uint16)
    edges = [0, LANES - 1, LANES, 2 * LANES, size - 4, size - 3, size - 1]
    candidate = baseline.copy()
    candidate[edges] = 0x8000
    for engine in ENGINES:
        assert changed_indices(candidate, baseline, engine=engine).tolist() == edges
    assert changed_indices(~baseline, baseline).tolist() == list(range(size))


@pytest.mark.parametrize("size", [3, MIN_ELEMENTS])
def test_zeros_of_both_signs_and_nan_payloads_are_changes(size: int) -> None:
    old, new = np.zeros(size, np.float32), np.zeros(size, np.float32)
    old[1], new[1] = 0.0, -0.0
    old_bits, new_bits = old.view(np.uint32), new.view(np.uint32)
    old_bits[2], new_bits[2] = 0x7FC00000, 0x7FC00001
    for engine in ENGINES:
        assert changed_indices(new_bits, old_bits, engine=engine).tolist() == [1, 2]
    old_bits[2] = new_bits[2]
    assert changed_indices(new_bits, old_bits).tolist() == [1]


# ---- tensors ----


def on_a_device(device: str) -> None:
    """Several chunks, the last one short; the baseline in host memory, read-only, or on the device."""
    generator = torch.Generator().manual_seed(3)
    old = torch.randn(1000, generator=generator).to(torch.bfloat16)
    new = old.clone()
    new[torch.randperm(1000, generator=generator)[:70]] += 1
    old_bits, new_bits = stored_bits(old), stored_bits(new)
    old_bits.flags.writeable = False
    expected = np.flatnonzero(new_bits != old_bits).tolist()
    for baseline in (old_bits, old.to(device)):
        found = find_on_device(new.to(device), baseline, chunk_bytes=256)
        assert_found(found, new_bits, old_bits, expected)
        assert changed_indices(new.to(device).reshape(10, 100), baseline).tolist() == expected
    assert find_on_device(new.to(device)[:0], old_bits[:0]).local.tolist() == []
    strided = new.reshape(10, 100).to(device).t()
    assert changed_indices(strided, old_bits.reshape(10, 100).T.copy()).tolist() == sorted(
        at % 100 * 10 + at // 100 for at in expected
    )


def test_tensors_are_compared_by_their_bits() -> None:
    on_a_device("cpu")


@pytest.mark.gpu
def test_tensors_are_compared_on_their_device() -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    on_a_device("cuda")


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn, torch.bool, torch.float64])
def test_tensors_of_types_that_torch_hardly_knows(dtype: torch.dtype) -> None:
    new = torch.zeros(10, dtype=torch.uint8 if dtype.itemsize == 1 else dtype)
    new[3] = 1
    new = new.view(dtype)
    baseline = np.zeros(10, f"u{dtype.itemsize}")
    for engine in ENGINES:
        found = find_changes(new, baseline, engine=engine)
        assert_found(found, stored_bits(new), baseline, [3])


def test_refuses_what_cannot_be_compared() -> None:
    bf16, fp32 = np.zeros(4, np.uint16), np.zeros(4, np.uint32)
    with pytest.raises(ConfigError, match="4 bytes wide and the baseline's 2"):
        changed_indices(fp32, bf16)
    with pytest.raises(ConfigError, match="4 bytes wide and the baseline's 2"):
        changed_indices(torch.zeros(4), bf16)
    with pytest.raises(ConfigError, match="has 3 elements and the baseline 4"):
        changed_indices(bf16[:3], bf16)
    with pytest.raises(ConfigError, match=r"float32.*view\(np.uint32\)"):
        changed_indices(np.zeros(4, np.float32), fp32)
    with pytest.raises(ConfigError, match="the baseline is an array of >u2"):
        changed_indices(bf16, bf16.astype(">u2"))


def test_shapes_and_strides_follow_c_order() -> None:
    baseline = np.arange(12, dtype=np.uint8).reshape(3, 4)
    candidate = baseline.copy()
    candidate[2, 1] = 99
    assert changed_indices(candidate, baseline).tolist() == [9]
    assert changed_indices(candidate.T, baseline.T).tolist() == [5]
    assert changed_indices(candidate, baseline, engine="torch").tolist() == [9]
    assert changed_indices(candidate.T, baseline.T, engine="torch").tolist() == [5]
    assert changed_indices(np.array(1, np.uint8), np.array(2, np.uint8)).tolist() == [0]
