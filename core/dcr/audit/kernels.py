"""Sums of keyed terms over arrays of lanes, compiled and in plain numpy, with equal results.

A term k * v, v = lane + 1 <= 2^32, has up to 93 bits. With k = high * 2^32 + low it is
low * v + (high * v) * 2^32; halves of the two products are summed into three 64-bit words, and
only the total is reduced modulo p, in Python's integers:

    total = word0 + word1 * 2^32 + word2 * 2^64

A word grows by less than 2^33 a term, so 2^30 terms fit. Shape legend: L lanes.
"""

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.audit.keys import GAMMA, MIX_1, MIX_2, MODULUS

Lanes: TypeAlias = NDArray[np.unsignedinteger[Any]]
Positions: TypeAlias = NDArray[np.int64]
Words: TypeAlias = tuple[int, int, int]
MAX_TERMS = 1 << 30
COMPILE_FROM = 1 << 12
_NUMPY_CHUNK = 1 << 16
_LOW = np.uint64(0xFFFFFFFF)
_LAST = np.uint64(MODULUS - 1)
_S3, _S27, _S30, _S31, _S32 = (np.uint64(n) for n in (3, 27, 30, 31, 32))
_ONE, _TWO = np.uint64(1), np.uint64(2)
_GAMMA, _MIX_1, _MIX_2 = np.uint64(GAMMA), np.uint64(MIX_1), np.uint64(MIX_2)


def sum_run(lanes: Lanes, seeds: tuple[int, int], first: int, step: int, *, force_numpy: bool) -> int:
    """Sum modulo p of the terms of ``lanes`` [L] at x = first, first + step, ... (x = 2 index + lane)."""
    total = 0
    compiled = not force_numpy and lanes.size >= COMPILE_FROM
    block = MAX_TERMS if compiled else _NUMPY_CHUNK
    for start in range(0, lanes.size, block):
        part = lanes[start : start + block]
        at = first + start * step
        if compiled:
            words = _compiled().run(
                part, np.uint64(seeds[0]), np.uint64(seeds[1]), np.uint64(at), np.uint64(step)
            )
        else:
            x = np.uint64(at) + np.arange(part.size, dtype=np.uint64) * np.uint64(step)
            words = _numpy_words(part, x, seeds)
        total += _join(words)
    return total % MODULUS


def sum_at(lanes: Lanes, indices: Positions, seeds: tuple[int, int], lane: int, *, force_numpy: bool) -> int:
    """Sum modulo p of the terms of ``lanes`` [L], each at its own canonical index [L]."""
    total = 0
    compiled = not force_numpy and lanes.size >= COMPILE_FROM
    block = MAX_TERMS if compiled else _NUMPY_CHUNK
    for start in range(0, lanes.size, block):
        part, at = lanes[start : start + block], indices[start : start + block]
        if compiled:
            words = _compiled().scattered(part, at, np.uint64(seeds[0]), np.uint64(seeds[1]), np.uint64(lane))
        else:
            words = _numpy_words(part, at.astype(np.uint64) * _TWO + np.uint64(lane), seeds)
        total += _join(words)
    return total % MODULUS


def sum_pair_at(
    pair: tuple[Lanes, Lanes], indices: Positions, seeds: tuple[int, int], lane: int, *, force_numpy: bool
) -> tuple[int, int]:
    """As ``sum_at`` of both arrays, which lie at the same ``indices`` [L]."""
    if force_numpy or indices.size < COMPILE_FROM:
        left, right = (sum_at(lanes, indices, seeds, lane, force_numpy=force_numpy) for lanes in pair)
        return left, right
    totals = [0, 0]
    for start in range(0, indices.size, MAX_TERMS):
        part = slice(start, start + MAX_TERMS)
        words = _compiled().scattered_pair(
            pair[0][part], pair[1][part], indices[part],
            np.uint64(seeds[0]), np.uint64(seeds[1]), np.uint64(lane),
        )  # fmt: skip
        totals = [total + _join(found) for total, found in zip(totals, words, strict=True)]
    return totals[0] % MODULUS, totals[1] % MODULUS


def sum_segments(
    lanes: Lanes, indices: Positions, ends: Positions, seeds: Sequence[tuple[int, int]]
) -> list[int]:
    """As ``sum_at`` (lane 0, compiled) of segments, which end at ``ends`` [S], of ``lanes`` [L < 2^30]."""
    words = np.zeros((ends.size, 3), dtype=np.uint64)
    _compiled().segments(lanes, indices, ends, np.array(seeds, dtype=np.uint64).reshape(-1, 2), words)
    return [(low + (middle << 32) + (high << 64)) % MODULUS for low, middle, high in words.tolist()]


def _join(words: Words) -> int:
    return int(words[0]) + (int(words[1]) << 32) + (int(words[2]) << 64)


def _numpy_words(lanes: Lanes, x: NDArray[np.uint64], seeds: tuple[int, int]) -> Words:
    z = x * _GAMMA + np.uint64(seeds[0])
    z = (z ^ (z >> _S30)) * _MIX_1
    z ^= np.uint64(seeds[1])
    z = (z ^ (z >> _S27)) * _MIX_2
    z ^= z >> _S31
    key = z >> _S3
    key = np.where(key >= _LAST, key - _LAST, key) + _ONE
    value = lanes.astype(np.uint64) + _ONE
    low, high = (key & _LOW) * value, (key >> _S32) * value
    word1 = int((low >> _S32).sum()) + int((high & _LOW).sum())
    return int((low & _LOW).sum()), word1, int((high >> _S32).sum())


def _compiled() -> ModuleType:
    """The compiled kernels; importing numba takes half a second, and small tensors never need it."""
    return import_module("dcr.audit.compiled")
