"""The change-detection engines of ``dcr.source.detect`` by name, all with one signature."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np

from dcr.source.detect import Indices, changed_indices, find_changes
from dcr_recipes.bench.ceilings import parts
from dcr_recipes.bench.data import Words

Kernel: TypeAlias = Callable[[Words, Words, int], Indices]
"""Candidate, baseline, threads -> indices of differing words."""


def _numba(candidate: Words, baseline: Words, threads: int) -> Indices:
    return changed_indices(candidate, baseline, engine="compiled", threads=threads)


def _numba_with_bits(candidate: Words, baseline: Words, threads: int) -> Indices:
    """What a construction calls: the bits of both sides are gathered on the way."""
    found = find_changes(candidate, baseline, engine="compiled", threads=threads)
    assert found is not None, "no limit was given"
    return found.local


def _numpy(candidate: Words, baseline: Words, threads: int) -> Indices:
    return changed_indices(candidate, baseline, engine="numpy", threads=threads)


def _torch(candidate: Words, baseline: Words, threads: int) -> Indices:
    """What runs on devices, here on host tensors; one of torch's own threads a part."""
    import torch

    torch.set_num_threads(1)
    ranges = parts(candidate.size, threads)
    if threads == 1:
        return changed_indices(candidate, baseline, engine="torch")
    with ThreadPoolExecutor(threads) as pool:
        found = pool.map(
            lambda part: changed_indices(candidate[part], baseline[part], engine="torch"), ranges
        )
        return np.concatenate([local + part.start for local, part in zip(found, ranges, strict=True)])


KERNELS: dict[str, Kernel] = {
    "numba": _numba,
    "numba with bits": _numba_with_bits,
    "numpy": _numpy,
    "torch": _torch,
}
