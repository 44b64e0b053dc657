"""Tensors seen as unsigned bits: torch does the moving, numpy the scattering, on the same memory.

Torch has no full set of operations on unsigned types, so bits of torch tensors are signed integer
*lanes* of the element's width; only equality, XOR and selection are ever computed on them.
"""

from functools import cache

import numpy as np
import torch

from dcr.errors import ConfigError
from dcr.model import Bits, TensorSpec, bits_dtype, known_dtypes

LANES = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Signed type of a width in bytes."""


@cache
def torch_dtype(name: str) -> torch.dtype:
    """The torch type of a catalogue dtype name.

    Raises:
        ConfigError: the name is not one that can be refitted.
    """
    if name not in known_dtypes():
        raise ConfigError(f"dtype {name!r} is not supported; supported: {', '.join(known_dtypes())}")
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def lanes(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage, shape and strides as signed integers of the element's width: 1, 2, 4 or 8 bytes."""
    return tensor.view(LANES[tensor.element_size()])


def dense_from_bits(spec: TensorSpec, bits: Bits) -> torch.Tensor:
    """A tensor of the item's shape and dtype over flat ``bits`` [num_elements]; copies only if it must."""
    flat = np.require(bits, dtype=bits_dtype(spec.dtype), requirements=["C", "W"])
    memory = torch.from_numpy(flat.view(f"i{flat.itemsize}"))
    return memory.view(torch_dtype(spec.dtype)).view(spec.shape)
