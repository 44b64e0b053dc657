"""Change detection on stored bits (paper section 5, DESIGN R2): +0 and -0 differ, and so do two NaNs.

Three engines give identical output: ``compiled`` (``scan_compiled``) runs at the speed of memory;
``numpy`` needs no compiler and serves short and misaligned arrays; ``torch`` (``scan_torch``) compares
on the candidate's own device and brings back only what changed.

Shapes: N elements, E changed elements.
"""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypeIs

from dcr.errors import ConfigError
from dcr.model import Bits, stored_bits

if TYPE_CHECKING:
    import torch

Indices: TypeAlias = NDArray[np.int64]
Engine: TypeAlias = Literal["auto", "compiled", "numpy", "torch"]
Candidate: TypeAlias = "Bits | torch.Tensor"
"""Stored bits on the host, or a contiguous tensor on any device whose elements hold them."""

MIN_ELEMENTS = 1 << 12
"""Below this many elements one numpy comparison costs less than what surrounds the kernel."""

MIN_PART_BYTES = 1 << 22
"""A thread is given at least so much to compare: starting it costs about 0.1 ms."""


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """Ascending flat indices [E] at which bits differ, and both sides' stored bits [E] there."""

    local: Indices
    old: Bits
    new: Bits


class _Scan(Protocol):
    def find(self, candidate: Bits, baseline: Bits, offset: int, *, at_most: int) -> Changes:
        """All changes, or more than ``at_most`` of them."""
        ...

    def indices(self, candidate: Bits, baseline: Bits, offset: int) -> Indices:
        """Where; ``offset`` is added."""
        ...


def changed_indices(
    candidate_bits: Candidate, baseline_bits: Candidate, *, engine: Engine = "auto", threads: int = 1
) -> Indices:
    """Return the sorted flat indices, int64 [E], at which the stored bits of two equal-sized arrays differ.

    Both hold unsigned stored bits of the same width; any shape, compared in C order. A tensor that is
    not on the host is compared where it is, and so is everything under ``engine="torch"``; otherwise
    up to ``threads`` threads share the work. The result depends on neither.

    Raises:
        ConfigError: another size, another element width, or values instead of bits.
    """
    _require_alike(candidate_bits, baseline_bits)
    candidate, baseline = (_on_host(side) for side in (candidate_bits, baseline_bits))
    if engine == "torch" or candidate is None or baseline is None:
        return _on_device(candidate_bits, baseline_bits).local
    scan = _scan(engine, candidate, baseline)
    parts = _shared(scan.indices, candidate, baseline, threads)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def find_changes(
    candidate_bits: Candidate, baseline_bits: Candidate, *, engine: Engine = "auto", threads: int = 1
) -> Changes:
    """As ``changed_indices``, with the bits of both sides gathered while they are in the cache."""
    limit = prod(candidate_bits.shape)
    found = find_few_changes(candidate_bits, baseline_bits, limit, engine=engine, threads=threads)
    assert found is not None
    return found


def find_few_changes(
    candidate_bits: Candidate,
    baseline_bits: Candidate,
    at_most: int,
    *,
    engine: Engine = "auto",
    threads: int = 1,
) -> Changes | None:
    """As ``find_changes``; None if there are more than ``at_most``.

    Indices of everything would take many times the memory of the bits themselves: the search ends there.
    """
    _require_alike(candidate_bits, baseline_bits)
    candidate, baseline = (_on_host(side) for side in (candidate_bits, baseline_bits))
    if engine == "torch" or candidate is None or baseline is None:
        found = _on_device(candidate_bits, baseline_bits)
        return found if found.local.size <= at_most else None
    scan = _scan(engine, candidate, baseline)
    parts = _shared(partial(scan.find, at_most=at_most), candidate, baseline, threads)
    if sum(part.local.size for part in parts) > at_most:
        return None
    return joined(parts)


def joined(parts: Sequence[Changes]) -> Changes:
    """Consecutive parts of one scan, at least one, as one."""
    if len(parts) == 1:
        return parts[0]
    return Changes(
        np.concatenate([part.local for part in parts]),
        np.concatenate([part.old for part in parts]),
        np.concatenate([part.new for part in parts]),
    )


def host_bits(side: Candidate) -> Bits:
    """Stored bits [N] on the host; shares memory with what is there already."""
    return side if _is_array(side) else stored_bits(side)


# ---- what is compared ----


def _is_array(side: Candidate) -> TypeIs[Bits]:
    return isinstance(side, np.ndarray)


def _require_alike(candidate: Candidate, baseline: Candidate) -> None:
    for what, side in (("candidate", candidate), ("baseline", baseline)):
        if _is_array(side) and (side.dtype.kind != "u" or not side.dtype.isnative):
            raise ConfigError(
                f"the {what} is an array of {side.dtype}; changes are found on stored bits, so pass "
                f"view(np.uint{8 * side.dtype.itemsize})"
            )
    if candidate.itemsize != baseline.itemsize:
        raise ConfigError(
            f"the candidate's elements are {candidate.itemsize} bytes wide and the baseline's "
            f"{baseline.itemsize} (an FP32 candidate on a BF16 baseline?): cast the candidate to "
            "the served dtype before it is compared"
        )
    sizes = prod(candidate.shape), prod(baseline.shape)
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the candidate has {sizes[0]} elements and the baseline {sizes[1]}: they are not of the same "
            "tensor"
        )


def _on_host(side: Candidate) -> Bits | None:
    """C order [N], or None for a tensor elsewhere; read-only: the kernels know one kind of array."""
    if not _is_array(side):
        if not side.is_cpu:
            return None
        side = stored_bits(side)
    flat = np.ascontiguousarray(side).reshape(-1).view()
    flat.flags.writeable = False
    return flat


# ---- who compares ----


class _Numpy:
    @staticmethod
    def indices(candidate: Bits, baseline: Bits, offset: int) -> Indices:
        found = np.flatnonzero(candidate != baseline)
        return found + offset if offset else found

    @staticmethod
    def find(candidate: Bits, baseline: Bits, offset: int, *, at_most: int) -> Changes:
        del at_most  # everything is found at once
        found = np.flatnonzero(candidate != baseline)
        return Changes(found + offset if offset else found, baseline[found], candidate[found])


def _scan(engine: Engine, candidate: Bits, baseline: Bits) -> _Scan:
    # the kernel's flags are in the order of the elements on little-endian machines only
    aligned = candidate.flags.aligned and baseline.flags.aligned and sys.byteorder == "little"
    fewest = 1 if engine == "compiled" else MIN_ELEMENTS
    if engine == "numpy" or not aligned or candidate.size < fewest:
        return _Numpy
    return cast("_Scan", import_module("dcr.source.scan_compiled"))  # imports a compiler


def _shared(call: Any, candidate: Bits, baseline: Bits, threads: int) -> list[Any]:
    """Results of ``call`` over consecutive parts, in order."""
    num_parts = max(1, min(threads, candidate.nbytes // MIN_PART_BYTES))
    if num_parts == 1:
        return [call(candidate, baseline, 0)]
    per_part = -(-candidate.size // num_parts)
    starts = range(0, candidate.size, per_part)
    with ThreadPoolExecutor(num_parts, "dcr-scan") as pool:
        pending = [
            pool.submit(call, candidate[at : at + per_part], baseline[at : at + per_part], at)
            for at in starts
        ]
        return [one.result() for one in pending]


def _on_device(candidate: Candidate, baseline: Candidate) -> Changes:
    found: Changes = import_module("dcr.source.scan_torch").find(candidate, baseline)
    return found
