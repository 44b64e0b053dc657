"""Bits of torch tensors, whatever their shape and layout."""

import numpy as np
import pytest
import torch

from dcr.model import stored_bits


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (2, 0, 3)])
def test_a_tensor_without_elements_has_no_bits(shape: tuple[int, ...]) -> None:
    bits = stored_bits(torch.empty(shape, dtype=torch.bfloat16))
    assert (bits.shape, bits.dtype) == ((0,), np.dtype("<u2"))


def test_row_major_whatever_the_layout() -> None:
    tensor = torch.tensor([[1.0, 2.0], [-1.0, 0.5]], dtype=torch.bfloat16).t()
    assert stored_bits(tensor).tolist() == [0x3F80, 0xBF80, 0x4000, 0x3F00]
    assert stored_bits(torch.tensor(True)).tolist() == [1]
