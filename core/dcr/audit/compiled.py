"""The audit sums as compiled loops; ``dcr.audit.kernels`` explains them and imports this when first needed.

Compiled at the first call for each lane width (half a second in all), without a lock on the interpreter;
kept on disk, or in each process where the installation is read-only. Shape legend: L lanes.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from dcr.audit.keys import GAMMA, MIX_1, MIX_2, MODULUS

_LOW = np.uint64(0xFFFFFFFF)
_LAST = np.uint64(MODULUS - 1)
_S3, _S27, _S30, _S31, _S32 = (np.uint64(n) for n in (3, 27, 30, 31, 32))
_ZERO, _ONE, _TWO = np.uint64(0), np.uint64(1), np.uint64(2)
_GAMMA, _MIX_1, _MIX_2 = np.uint64(GAMMA), np.uint64(MIX_1), np.uint64(MIX_2)


def _kept(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


@numba.njit(nogil=True, inline="always")
def _key(x: Any, seed0: Any, seed1: Any) -> Any:
    z = x * _GAMMA + seed0
    z = (z ^ (z >> _S30)) * _MIX_1
    z ^= seed1
    z = (z ^ (z >> _S27)) * _MIX_2
    z ^= z >> _S31
    key = z >> _S3
    if key >= _LAST:
        key -= _LAST
    return key + _ONE


@_kept
def run(lanes: Any, seed0: Any, seed1: Any, first: Any, step: Any) -> Any:
    """Three words of the sum over ``lanes`` [L] at x = first, first + step, ...; all scalars uint64."""
    word0 = word1 = word2 = _ZERO
    x = first
    for i in range(lanes.size):
        key = _key(x, seed0, seed1)
        value = np.uint64(lanes[i]) + _ONE
        low, high = (key & _LOW) * value, (key >> _S32) * value
        word0 += low & _LOW
        word1 += (low >> _S32) + (high & _LOW)
        word2 += high >> _S32
        x += step
    return word0, word1, word2


@_kept
def scattered_pair(left: Any, right: Any, indices: Any, seed0: Any, seed1: Any, lane: Any) -> Any:
    """As ``scattered`` of ``left`` and of ``right``, both [L]: three words each; a key is computed once."""
    left0 = left1 = left2 = _ZERO
    right0 = right1 = right2 = _ZERO
    for i in range(indices.size):
        key = _key(np.uint64(indices[i]) * _TWO + lane, seed0, seed1)
        key_low, key_high = key & _LOW, key >> _S32
        value = np.uint64(left[i]) + _ONE
        low, high = key_low * value, key_high * value
        left0 += low & _LOW
        left1 += (low >> _S32) + (high & _LOW)
        left2 += high >> _S32
        value = np.uint64(right[i]) + _ONE
        low, high = key_low * value, key_high * value
        right0 += low & _LOW
        right1 += (low >> _S32) + (high & _LOW)
        right2 += high >> _S32
    return (left0, left1, left2), (right0, right1, right2)


@_kept
def scattered(lanes: Any, indices: Any, seed0: Any, seed1: Any, lane: Any) -> Any:
    """Three words of the sum over ``lanes`` [L] at canonical ``indices`` int64 [L]."""
    word0 = word1 = word2 = _ZERO
    for i in range(lanes.size):
        key = _key(np.uint64(indices[i]) * _TWO + lane, seed0, seed1)
        value = np.uint64(lanes[i]) + _ONE
        low, high = (key & _LOW) * value, (key >> _S32) * value
        word0 += low & _LOW
        word1 += (low >> _S32) + (high & _LOW)
        word2 += high >> _S32
    return word0, word1, word2


@_kept
def segments(lanes: Any, indices: Any, ends: Any, seeds: Any, words: Any) -> None:
    """``words`` [n, 3]: as ``scattered`` of each segment n, which ends at ``ends`` [n]; ``seeds`` [n, 2]."""
    start = 0
    for n in range(ends.size):
        part, at = lanes[start : ends[n]], indices[start : ends[n]]
        words[n, 0], words[n, 1], words[n, 2] = scattered(part, at, seeds[n, 0], seeds[n, 1], _ZERO)
        start = ends[n]
