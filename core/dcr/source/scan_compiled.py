"""The scan as a compiled loop without the interpreter's lock; ``dcr.source.detect`` imports it when needed.

64 elements of both sides are compared at a time as one vector, whose result is a word of 64 flags
(the compiler chooses the instructions of the machine). Up to two flagged elements a word are written
without a branch: at 1% changed, which words differ is noise, and a mispredicted branch costs as much
as reading 10 words. Indices and bits go straight into arrays that grow by what was found so far.

Shapes: N elements, C capacity of the output arrays.
"""

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from dcr.model import Bits
from dcr.source.detect import Changes, Indices, joined

LANES = 64
"""Elements compared at once; the output arrays keep so much room beyond what they must hold."""

_FIRST_SHARE = 12
"""The first output arrays have room for one changed element in so many."""

_ONE = np.uint64(1)
_tuple: Any = numba.types.Tuple
_lock = threading.Lock()
Kernel: TypeAlias = Callable[..., tuple[int, int]]


def find(candidate: Bits, baseline: Bits, offset: int, *, at_most: int) -> Changes:
    """Changes of flat aligned read-only bits [N], or more than ``at_most`` of them.

    ``offset`` is added to every index.
    """
    kernel = _find_kernel(candidate.itemsize)
    parts: list[Changes] = []
    at, total = 0, 0
    capacity = _capacity(candidate.size, candidate.size // _FIRST_SHARE)
    while (at < candidate.size and total <= at_most) or not parts:
        capacity = min(capacity, at_most - total + 1 + LANES)
        local = np.empty(capacity, np.int64)
        old, new = np.empty(capacity, candidate.dtype), np.empty(capacity, candidate.dtype)
        num_found, stop = kernel(candidate, baseline, at, offset, (local, old, new))
        for array in (local, old, new):
            array.resize(num_found, refcheck=False)
        parts.append(Changes(local, old, new))
        total += num_found
        capacity = _next_capacity(num_found, stop - at, candidate.size - stop)
        at = stop
    return joined(parts)


def indices(candidate: Bits, baseline: Bits, offset: int) -> Indices:
    """As ``find``, indices alone."""
    kernel = _indices_kernel(candidate.itemsize)
    parts: list[Indices] = []
    at = 0
    capacity = _capacity(candidate.size, candidate.size // _FIRST_SHARE)
    while at < candidate.size or not parts:
        local = np.empty(capacity, np.int64)
        num_found, stop = kernel(candidate, baseline, at, offset, local)
        local.resize(num_found, refcheck=False)
        parts.append(local)
        capacity = _next_capacity(num_found, stop - at, candidate.size - stop)
        at = stop
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _capacity(num_left: int, guess: int) -> int:
    return min(num_left, guess) + LANES


def _next_capacity(num_found: int, num_seen: int, num_left: int) -> int:
    """Room for what is left at the rate so far and half as much again."""
    return _capacity(num_left, int(1.5 * num_left * num_found / max(num_seen, 1)) + LANES)


# ---- kernels ----


@cache
def _find_kernel(width: int) -> Kernel:
    bits = numba.from_dtype(np.dtype(f"u{width}"))
    out = numba.types.Array(bits, 1, "C")
    return _compiled(_find, bits, _tuple((numba.int64[::1], out, out)))


@cache
def _indices_kernel(width: int) -> Kernel:
    return _compiled(_indices, numba.from_dtype(np.dtype(f"u{width}")), numba.int64[::1])


def _compiled(loop: Callable[..., Any], bits: Any, out: Any) -> Kernel:
    """Compile for one width; on disk, unless there is nowhere to keep compiled code."""
    side = numba.types.Array(bits, 1, "C", readonly=True)
    signature = _tuple((numba.int64, numba.int64))(side, side, numba.int64, numba.int64, out)
    kernel: Kernel
    with _lock:
        try:
            kernel = numba.njit(signature, nogil=True, cache=True)(loop)
        except RuntimeError:  # a read-only installation: compile in each process
            kernel = numba.njit(signature, nogil=True)(loop)
    return kernel


def _differing_code(_: Any, candidate: Any, baseline: Any, at: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = ir.VectorType(ir.IntType(candidate.dtype.bitwidth), LANES)
        sides = []
        for kind, value in zip(signature.args[:2], args[:2], strict=True):
            data = context.make_array(kind)(context, builder, value).data
            pointer = builder.bitcast(builder.gep(data, [args[2]]), vector.as_pointer())
            sides.append(builder.load(pointer, align=candidate.dtype.bitwidth // 8))
        return builder.bitcast(builder.icmp_unsigned("!=", *sides), ir.IntType(LANES))

    return numba.uint64(candidate, baseline, at), codegen


def _lowest_code(_: Any, flags: Any) -> Any:
    def codegen(_: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return numba.int64(flags), codegen


def _count_code(_: Any, flags: Any) -> Any:
    def codegen(_: Any, builder: Any, signature: Any, args: Any) -> Any:
        del signature
        return builder.ctpop(args[0])

    return numba.int64(flags), codegen


_differing: Any = intrinsic(_differing_code)
"""Bit j of the uint64: whether element at + j differs. Both arrays hold LANES elements from ``at`` on."""
_lowest: Any = intrinsic(_lowest_code)
"""Position of the lowest set bit of a uint64; 64 if there is none."""
_count: Any = intrinsic(_count_code)
"""Number of set bits of a uint64."""


@numba.njit(inline="always")
def _put(candidate: Any, baseline: Any, index: Any, out: Any, position: Any) -> None:
    local, old, new = out
    local[position], old[position], new[position] = index, baseline[index], candidate[index]


def _find(candidate: Any, baseline: Any, at: Any, offset: Any, out: Any) -> Any:
    """Scan [N] from element ``at`` to the end or until ``out`` [C] is nearly full: how many, up to where.

    ``out`` is (local, old, new). What is written beyond the count is written over or cut off.
    """
    num_found, room = 0, out[0].size - LANES
    while at + LANES <= candidate.size and num_found <= room:
        flags = _differing(candidate, baseline, at)
        num_here, done = _count(flags), 0
        while done < 2 or done < num_here:
            # with none left the position is 64: any element that can be read will do
            _put(candidate, baseline, at + (_lowest(flags) & (LANES - 1)), out, num_found + done)
            flags, done = np.uint64(flags & (flags - _ONE)), done + 1
        num_found, at = num_found + num_here, at + LANES
    if at + LANES > candidate.size:
        while at < candidate.size and num_found < out[0].size:
            _put(candidate, baseline, at, out, num_found)
            num_found, at = num_found + (candidate[at] != baseline[at]), at + 1
    for position in range(num_found):
        out[0][position] += offset
    return num_found, at


def _indices(candidate: Any, baseline: Any, at: Any, offset: Any, local: Any) -> Any:
    """As ``_find``, indices alone."""
    num_found, room = 0, local.size - LANES
    while at + LANES <= candidate.size and num_found <= room:
        flags = _differing(candidate, baseline, at)
        num_here, done = _count(flags), 0
        while done < 2 or done < num_here:
            local[num_found + done] = at + offset + _lowest(flags)
            flags, done = np.uint64(flags & (flags - _ONE)), done + 1
        num_found, at = num_found + num_here, at + LANES
    if at + LANES > candidate.size:
        while at < candidate.size and num_found < local.size:
            local[num_found] = at + offset
            num_found, at = num_found + (candidate[at] != baseline[at]), at + 1
    return num_found, at
