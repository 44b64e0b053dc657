"""Change detection on stored bits (paper section 5, DESIGN R2): +0 and -0 differ, and so do two NaNs.

Two implementations give identical output. The compiled one reads 64-bit words, branches once per
word (almost all are equal), and resolves the lanes of a differing word without a branch. The
numpy one serves what words cannot: short or unaligned arrays.

Shapes: N elements, E changed elements, W words of 8 bytes.
"""

import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.errors import ConfigError
from dcr.model import Bits

Indices: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Engine: TypeAlias = Literal["auto", "compiled", "numpy"]
Kernel: TypeAlias = Callable[[Words, Words, int, Indices], int]

BLOCK_WORDS = 1 << 15
"""Words compared per kernel call: the index buffer of a block stays in the second-level cache."""

MIN_WORDS = 1 << 9
"""Below this many words one numpy comparison costs less than the kernel calls."""


def changed_indices(candidate_bits: Bits, baseline_bits: Bits, *, engine: Engine = "auto") -> Indices:
    """Return the sorted flat indices [E] at which the stored bits of two equal-sized arrays differ.

    Both arrays hold unsigned stored bits of the same width; any shape, compared in C order.

    Raises:
        ConfigError: another size, another element width, or values instead of bits.
    """
    _require_comparable(candidate_bits, baseline_bits)
    candidate, baseline = _flat(candidate_bits), _flat(baseline_bits)
    num_words = _num_words(candidate, baseline)
    if engine == "numpy" or num_words < (1 if engine == "compiled" else MIN_WORDS):
        return np.flatnonzero(candidate != baseline)
    return _changed_by_words(candidate, baseline, num_words)


def _require_comparable(candidate: Bits, baseline: Bits) -> None:
    for what, bits in (("candidate", candidate), ("baseline", baseline)):
        if bits.dtype.kind != "u" or not bits.dtype.isnative:
            raise ConfigError(
                f"the {what} is an array of {bits.dtype}; changes are found on stored bits, so pass "
                f"view(np.uint{8 * bits.dtype.itemsize})"
            )
    if candidate.dtype != baseline.dtype:
        raise ConfigError(
            f"the candidate's elements are {candidate.dtype.itemsize} bytes wide and the baseline's "
            f"{baseline.dtype.itemsize} (an FP32 candidate on a BF16 baseline?): cast the candidate to "
            "the served dtype before it is compared"
        )
    if candidate.size != baseline.size:
        raise ConfigError(
            f"the candidate has {candidate.size} elements and the baseline {baseline.size}: they are "
            "not of the same tensor"
        )


def _flat(bits: Bits) -> Bits:
    return np.ascontiguousarray(bits).reshape(-1)


def _num_words(candidate: Bits, baseline: Bits) -> int:
    """Whole words that both arrays can be read as; 0 if an array is not aligned to 8 bytes."""
    aligned = candidate.ctypes.data % 8 == 0 and baseline.ctypes.data % 8 == 0
    return candidate.nbytes // 8 if aligned and sys.byteorder == "little" else 0


def _changed_by_words(candidate: Bits, baseline: Bits, num_words: int) -> Indices:
    lanes = 8 // candidate.dtype.itemsize
    body = num_words * lanes
    left, right = candidate[:body].view(np.uint64), baseline[:body].view(np.uint64)
    kernel, found = _kernel(), np.empty(BLOCK_WORDS * lanes, np.int64)
    parts: list[Indices] = []
    for start in range(0, num_words, BLOCK_WORDS):
        stop = start + BLOCK_WORDS
        num_found = kernel(left[start:stop], right[start:stop], lanes, found)
        if num_found:
            parts.append(found[:num_found] + start * lanes)
    tail = np.flatnonzero(candidate[body:] != baseline[body:])
    return np.concatenate([*parts, tail + body])


@cache
def _kernel() -> Kernel:
    """Compile on first use; read-only signatures take writable arrays too, so one version serves all."""
    import numba  # here, so that importing this module does not load a compiler

    words: Any = numba.types.Array(numba.uint64, 1, "C", readonly=True)
    signature = numba.int64(words, words, numba.int64, numba.int64[::1])
    kernel: Kernel
    try:
        kernel = numba.njit(signature, nogil=True, cache=True)(_compare_words)
    except RuntimeError:  # nowhere to keep compiled code (read-only installation): compile in each process
        kernel = numba.njit(signature, nogil=True)(_compare_words)
    return kernel


def _compare_words(candidate: Words, baseline: Words, lanes: int, found: Indices) -> int:
    """Write the indices of differing lanes to ``found`` [>= W * lanes]; return how many.

    Every lane of a differing word is written and the count advances only past those that differ.
    """
    num_found = 0
    lane_bits = np.uint64(64 // lanes)
    mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> np.uint64(64 - 64 // lanes)
    for word in range(candidate.size):
        difference = candidate[word] ^ baseline[word]
        if difference != 0:
            for lane in range(lanes):
                found[num_found] = word * lanes + lane
                num_found += (difference & mask) != 0
                difference = np.uint64(difference >> lane_bits) if lanes > 1 else difference
    return num_found
