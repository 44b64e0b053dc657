"""The change-detection kernels by name, all with one signature."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np

from dcr.source.detect import Indices, changed_indices
from dcr_recipes.bench.ceilings import parts
from dcr_recipes.bench.data import Words

Kernel: TypeAlias = Callable[[Words, Words, int], Indices]
"""Candidate, baseline, threads -> indices of differing words."""


def _numba(candidate: Words, baseline: Words, threads: int) -> Indices:
    return _split(
        lambda left, right: changed_indices(left, right, engine="compiled"), candidate, baseline, threads
    )


def _numpy(candidate: Words, baseline: Words, threads: int) -> Indices:
    return _split(
        lambda left, right: changed_indices(left, right, engine="numpy"), candidate, baseline, threads
    )


def _split(
    find: Callable[[Words, Words], Indices], candidate: Words, baseline: Words, threads: int
) -> Indices:
    if threads == 1:
        return find(candidate, baseline)
    ranges = parts(candidate.size, threads)
    with ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(lambda part: find(candidate[part], baseline[part]) + part.start, ranges))
    return np.concatenate(found)


KERNELS: dict[str, Kernel] = {"numba": _numba, "numpy": _numpy}
