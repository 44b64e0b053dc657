"""Stored element types, by their Hugging Face checkpoint names, and the unsigned type of their bits."""

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.errors import ConfigError

if TYPE_CHECKING:
    import torch

Bits: TypeAlias = NDArray[np.unsignedinteger[Any]]
"""Stored bits: unsigned integers of the element's width."""

_WIDTH_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8,
}  # fmt: skip
_BITS: dict[int, np.dtype[np.unsignedinteger[Any]]] = {
    1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")
}  # fmt: skip


def known_dtypes() -> tuple[str, ...]:
    """Names of every dtype that can be refitted; position is the wire id of format v1, so only append."""
    return tuple(_WIDTH_BYTES)


def width_bytes(dtype: str) -> int:
    """Width of one element in bytes.

    Raises:
        ConfigError: the dtype has no defined stored bits here (complex, sub-byte).
    """
    try:
        return _WIDTH_BYTES[dtype]
    except KeyError:
        known = ", ".join(_WIDTH_BYTES)
        raise ConfigError(f"dtype {dtype!r} is not supported; supported: {known}") from None


def bits_dtype(dtype: str) -> np.dtype[np.unsignedinteger[Any]]:
    """Little-endian unsigned numpy type that holds the stored bits of one ``dtype`` element."""
    return _BITS[width_bytes(dtype)]


def stored_bits(tensor: "torch.Tensor") -> Bits:
    """The elements' bits [num_elements] in row-major order, on the host.

    Shares memory with a contiguous host tensor; any other is copied.
    """
    import torch

    if not tensor.numel():  # torch gives an empty tensor strides that no other type can view
        return np.zeros(0, dtype=f"<u{tensor.element_size()}")
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    bits: Bits = raw.view(f"<u{tensor.element_size()}")
    return bits
