"""A cast that is called readable can be undone, bit for bit, NaNs included (DESIGN B6)."""

import numpy as np
import pytest
import torch

from dcr.model import Bits, bits_dtype, known_dtypes
from dcr.receiver.casts import cast_back, cast_bits, readable

STORED = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool]


@pytest.mark.parametrize("stored", STORED, ids=str)
@pytest.mark.parametrize("source", known_dtypes())
def test_a_readable_cast_is_undone(source: str, stored: torch.dtype) -> None:
    if not readable(source, stored):
        return
    width = bits_dtype(source)
    rng = np.random.default_rng(0)
    bits: Bits = rng.integers(0, 256, (1 << 17) * width.itemsize, dtype=np.uint8).view(width)
    back, wrong = cast_back(cast_bits(bits, source, stored), source, stored)
    assert np.array_equal(back, bits)
    assert not wrong.any()


def test_what_no_cast_stores_is_told() -> None:
    """A flipped mantissa bit of an FP32 copy would vanish in a cast back to BF16."""
    stored = cast_bits(np.arange(0, 1 << 16, dtype=np.uint16), "bfloat16", torch.float32)
    stored[[3, 700]] ^= 1
    _, wrong = cast_back(stored, "bfloat16", torch.float32)
    assert np.flatnonzero(wrong).tolist() == [3, 700]


def test_casts_that_lose_bits_are_not_readable() -> None:
    assert readable("bfloat16", torch.float32)
    assert not readable("float32", torch.bfloat16)
    assert not readable("float32", torch.float64)
    assert not readable("int64", torch.int32)
    assert not readable("bfloat16", torch.float16)
