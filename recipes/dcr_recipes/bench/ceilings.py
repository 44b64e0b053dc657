"""How fast this machine reads memory now: the ceiling of everything that compares. W words of 8 bytes."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Words64: TypeAlias = NDArray[np.uint64]
Sum: TypeAlias = Callable[[Words64, Words64], np.uint64]


@cache
def xor_sum() -> Sum:
    """Compiled sum of a ^ b, modulo 2^64: reads both arrays once and does nothing else that takes time."""
    import numba

    try:
        compiled: Any = numba.njit(nogil=True, cache=True)(_xor_sum)
    except RuntimeError:  # nowhere to keep compiled code
        compiled = numba.njit(nogil=True)(_xor_sum)
    compiled(np.zeros(1, np.uint64), np.zeros(1, np.uint64))
    found: Sum = compiled
    return found


def _xor_sum(left: Words64, right: Words64) -> np.uint64:
    total = np.uint64(0)
    for word in range(left.size):
        total += left[word] ^ right[word]
    return total


def parts(size: int, num_parts: int, multiple: int = 8) -> list[slice]:
    """``num_parts`` consecutive ranges that cover ``size``, cut at multiples.

    >>> parts(20, 2)
    [slice(0, 8, None), slice(8, 20, None)]
    """
    cuts = [size * part // num_parts // multiple * multiple for part in range(num_parts)]
    return [slice(start, end) for start, end in zip(cuts, [*cuts[1:], size], strict=True)]


def in_threads(work: Callable[[slice], object], ranges: Sequence[slice], pool: ThreadPoolExecutor) -> None:
    """Run ``work`` on every range, one thread a range; the caller's thread takes a lone one."""
    if len(ranges) == 1:
        work(ranges[0])
        return
    for done in [pool.submit(work, part) for part in ranges]:
        done.result()
