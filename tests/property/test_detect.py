"""Detection against a bytewise oracle, on both engines (DESIGN R2)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr.errors import ConfigError
from dcr.source import changed_indices
from dcr.source.detect import BLOCK_WORDS, MIN_WORDS, Engine

ENGINES: tuple[Engine, ...] = ("compiled", "numpy", "auto")
WIDTHS = st.sampled_from([np.uint8, np.uint16, np.uint32, np.uint64])


def oracle(candidate: np.ndarray, baseline: np.ndarray) -> list[int]:
    width = candidate.dtype.itemsize
    left, right = candidate.tobytes(), baseline.tobytes()
    starts = range(0, len(left), width)
    return [at // width for at in starts if left[at : at + width] != right[at : at + width]]


@given(width=WIDTHS, size=st.integers(0, 9000), rate=st.sampled_from([0, 0.001, 0.3, 1]),
       offset=st.integers(0, 8), seed=st.integers(0, 1 << 30))  # fmt: skip
def test_every_engine_finds_exactly_the_changed_elements(
    width: type, size: int, rate: float, offset: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    itemsize = np.dtype(width).itemsize
    raw = rng.integers(0, 256, size * itemsize + 16, np.uint8)
    baseline: np.ndarray = raw[offset : offset + size * itemsize].view(
        width
    )  # also starts off a word boundary
    masks = rng.integers(1, np.iinfo(width).max, size, width, endpoint=True)
    candidate: np.ndarray = np.where(rng.random(size) < rate, baseline ^ masks, baseline).astype(width)
    baseline.flags.writeable = False
    expected = oracle(candidate, baseline)
    for engine in ENGINES:
        found = changed_indices(candidate, baseline, engine=engine)
        assert found.dtype == np.int64
        assert found.tolist() == expected


def test_blocks_join_without_gap_or_overlap() -> None:
    lanes = 4
    size = (2 * BLOCK_WORDS + 1) * lanes + 3
    baseline = np.zeros(size, np.uint16)
    edges = [0, BLOCK_WORDS * lanes - 1, BLOCK_WORDS * lanes, 2 * BLOCK_WORDS * lanes, size - 4, size - 1]
    candidate = baseline.copy()
    candidate[edges] = 0x8000
    for engine in ENGINES:
        assert changed_indices(candidate, baseline, engine=engine).tolist() == edges
    assert changed_indices(~baseline, baseline).tolist() == list(range(size))


@pytest.mark.parametrize("size", [3, MIN_WORDS * 4])
def test_zeros_of_both_signs_and_nan_payloads_are_changes(size: int) -> None:
    old, new = np.zeros(size, np.float32), np.zeros(size, np.float32)
    old[1], new[1] = 0.0, -0.0
    old_bits, new_bits = old.view(np.uint32), new.view(np.uint32)
    old_bits[2], new_bits[2] = 0x7FC00000, 0x7FC00001
    for engine in ENGINES:
        assert changed_indices(new_bits, old_bits, engine=engine).tolist() == [1, 2]
    old_bits[2] = new_bits[2]
    assert changed_indices(new_bits, old_bits).tolist() == [1]


def test_refuses_what_cannot_be_compared() -> None:
    bf16, fp32 = np.zeros(4, np.uint16), np.zeros(4, np.uint32)
    with pytest.raises(ConfigError, match="4 bytes wide and the baseline's 2"):
        changed_indices(fp32, bf16)
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
    assert changed_indices(np.array(1, np.uint8), np.array(2, np.uint8)).tolist() == [0]
