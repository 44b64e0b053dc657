"""Casts that a loader makes while it stores: torch's own, on compact values (DESIGN B2, B6)."""

from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dcr.model import Bits, bits_dtype
from dcr.receiver.lanes import lanes, torch_dtype

_TRIED_BYTES = 2
"""Widest source whose patterns are tried one and all."""


def cast_bits(bits: Bits, source: str, stored: torch.dtype) -> Bits:
    """Stored bits [E] of torch's cast of ``bits`` [E] from catalogue dtype ``source`` to ``stored``."""
    return _bits(_values(bits, torch_dtype(source)).to(stored))


def cast_back(bits: Bits, source: str, stored: torch.dtype) -> tuple[Bits, NDArray[np.bool_]]:
    """Canonical bits [E] of stored ``bits`` [E], and where [E] these are the cast of no pattern.

    For casts that are ``readable``. Not torch's cast back, which changes NaNs.
    """
    if torch_dtype(source) == stored:
        return bits, np.zeros(bits.shape, dtype=bool)
    if _keeps_integers(torch_dtype(source), stored):
        canonical = _bits(_values(bits, stored).to(torch_dtype(source)))
        return canonical, cast_bits(canonical, source, stored) != bits
    if shift := _shift(source, stored):
        return (bits >> shift).astype(bits_dtype(source)), (bits & ((1 << shift) - 1)) != 0
    images, patterns = _inverse(source, stored)
    at = np.minimum(np.searchsorted(images, bits), images.size - 1)
    return patterns[at], images[at] != bits


@cache
def readable(source: str, stored: torch.dtype) -> bool:
    """Whether torch's cast depends on the value alone and keeps all patterns apart: it can be undone.

    Vectorized and scalar loops treat NaNs differently in some casts, so what a narrow float does is
    tried out, every pattern in both loops. Wider sources than 2 bytes pass only between integers.
    """
    dtype = torch_dtype(source)
    if dtype == stored or _keeps_integers(dtype, stored):
        return True
    if dtype.itemsize > _TRIED_BYTES or torch.bool in (dtype, stored):
        return False
    values = _values(_patterns(source), dtype)
    images = values.to(stored)
    apart = torch.stack([values, values], dim=1)[:, 0].to(stored)  # strided: the scalar loop
    same = torch.equal(lanes(images), lanes(apart.contiguous()))
    return same and int(np.unique(_bits(images)).size) == images.numel()


def _keeps_integers(source: torch.dtype, stored: torch.dtype) -> bool:
    if torch.bool in (source, stored) or source.is_floating_point or stored.is_floating_point:
        return False
    small, large = torch.iinfo(source), torch.iinfo(stored)
    return large.min <= small.min and small.max <= large.max


@cache
def _shift(source: str, stored: torch.dtype) -> int:
    """Bits by which the stored form is the canonical one shifted left (16 for BF16 in FP32); 0 if not so."""
    shift = 8 * (stored.itemsize - torch_dtype(source).itemsize)
    if shift <= 0:
        return 0
    patterns = _patterns(source)
    images = cast_bits(patterns, source, stored)
    return shift if np.array_equal(images, patterns.astype(images.dtype) << shift) else 0


@cache
def _inverse(source: str, stored: torch.dtype) -> tuple[Bits, Bits]:
    """Stored bits of every pattern, ascending, and the patterns."""
    patterns = _patterns(source)
    images = cast_bits(patterns, source, stored)
    order = np.argsort(images)
    return images[order], patterns[order]


def _patterns(source: str) -> Bits:
    width = bits_dtype(source)
    found: Bits = np.arange(1 << (8 * width.itemsize), dtype=np.uint64).astype(width)
    return found


def _values(bits: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
    flat = np.require(bits, requirements=["C", "W"])
    return torch.from_numpy(flat.view(f"i{flat.itemsize}")).view(dtype)


def _bits(values: torch.Tensor) -> Bits:
    found: Bits = lanes(values.contiguous()).numpy().view(f"<u{values.element_size()}")
    return found
