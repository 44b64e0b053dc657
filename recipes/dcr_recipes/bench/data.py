"""Weights and changes to measure with (paper section 8.2; bit patterns as in docs/format.md).

Everything follows from a seed. Shapes: N elements, E changed ones, K elements of a chunk.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32: TypeAlias = NDArray[np.float32]
Words: TypeAlias = NDArray[np.uint16]
Indices: TypeAlias = NDArray[np.int64]
Pattern: TypeAlias = Literal["uniform", "clustered"]

CHUNK_ELEMENTS = 1 << 22
"""Elements made at once; bounds temporaries to about 100 MB."""

WEIGHT_STD = 0.02
BURST_ELEMENTS = 64
_BURST_SHARE = 0.5
_RELATIVE_STEP = np.float32(0.01)
_BETAS = (0.9, 0.999)
_ADAMW_STEPS = 12
_POOL_ELEMENTS = 1 << 20
_SAMPLE_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Changes:
    """Changed elements of one tensor: ascending flat indices [E], bits before and after, uint16 [E]."""

    locations: Indices
    old: Words
    new: Words


def to_bfloat16(values: Float32) -> Words:
    """Bits of the nearest BF16 number, ties to even; ``values`` are finite.

    >>> [hex(word) for word in to_bfloat16(np.array([1.0, -0.0, 1.00390625], np.float32))]
    ['0x3f80', '0x8000', '0x3f80']
    """
    bits = values.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    return rounded.astype(np.uint16)


def to_float32(words: Words) -> Float32:
    """The numbers that BF16 ``words`` stand for.

    >>> to_float32(np.array([0x3F80], np.uint16)).tolist()
    [1.0]
    """
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def weights(rng: np.random.Generator, num_elements: int) -> Float32:
    """Master weights, normal with the spread of a trained model's matrices, float32 [N]."""
    values = rng.standard_normal(num_elements, dtype=np.float32)
    values *= np.float32(WEIGHT_STD)
    return values


def positions(rng: np.random.Generator, num_elements: int, rate: float, pattern: Pattern) -> Indices:
    """Ascending positions [E], about ``rate`` of them.

    ``clustered``: bursts of 64 neighbours, aligned, half of each changed.
    """
    if pattern == "uniform":
        return np.flatnonzero(rng.random(num_elements, dtype=np.float32) < np.float32(rate))
    num_bursts = round(num_elements * rate / (BURST_ELEMENTS * _BURST_SHARE))
    starts = np.unique(rng.integers(0, num_elements // BURST_ELEMENTS, num_bursts)) * BURST_ELEMENTS
    inside = starts[:, None] + np.arange(BURST_ELEMENTS)
    return inside[rng.random(inside.shape, dtype=np.float32) < _BURST_SHARE]


class AdamW:
    """One AdamW step at a constant learning rate, chosen so that ``rate`` of the stored bits change.

    The optimizer's moments are simulated for some steps on gradients whose scale differs from element
    to element; FP32 master weights hold the bits below BF16, so almost all changes are of one unit.
    """

    def __init__(self, rate: float, seed: int = 1) -> None:
        self.rate = rate
        self._updates = _adamw_updates(np.random.default_rng(seed))
        self.learning_rate = self._fit(rate, np.random.default_rng(seed + 1))

    def step(self, rng: np.random.Generator, master: Float32) -> tuple[Words, Changes]:
        """Bits before the step, uint16 [N], and what the step changes."""
        return _changed(master, master - np.float32(self.learning_rate) * self._drawn(rng, master.size))

    def advance(self, rng: np.random.Generator, master: Float32) -> Changes:
        """One step of ``master`` [N], in place; what of its stored bits it changes."""
        after = master - np.float32(self.learning_rate) * self._drawn(rng, master.size)
        changes = _changed(master, after)[1]
        master[:] = after
        return changes

    def _drawn(self, rng: np.random.Generator, num_elements: int) -> Float32:
        start = int(rng.integers(self._updates.size))
        if num_elements < self._updates.size:  # the same, without turning all of it
            return self._updates[(np.arange(num_elements) - start) % self._updates.size]
        return np.resize(np.roll(self._updates, start), num_elements)

    def _fit(self, rate: float, rng: np.random.Generator) -> float:
        master = weights(rng, _SAMPLE_ELEMENTS)
        updates, low, high = self._drawn(rng, master.size), 1e-8, 1e-3
        for _ in range(20):
            middle = (low * high) ** 0.5
            found = _changed(master, master - np.float32(middle) * updates)[1].locations.size / master.size
            low, high = (middle, high) if found < rate else (low, middle)
        return float((low * high) ** 0.5)


class Relative:
    """Uniform positions where candidate = bf16(w * (1 + 0.01 * randn)); ``rate`` is of changed bits."""

    def __init__(self, rate: float, seed: int = 3) -> None:
        self.rate = rate
        self._drawn_rate = rate
        rng = np.random.default_rng(seed)
        _, changes = self.step(rng, weights(rng, _SAMPLE_ELEMENTS))
        # some of the products round to the number that was there
        self._drawn_rate = rate * rate * _SAMPLE_ELEMENTS / changes.locations.size

    @property
    def drawn_rate(self) -> float:
        """Share of elements that must be multiplied so that ``rate`` of them changes."""
        return self._drawn_rate

    def step(self, rng: np.random.Generator, master: Float32) -> tuple[Words, Changes]:
        """Bits before, uint16 [N], and what changes."""
        old = to_bfloat16(master)
        where = positions(rng, master.size, self._drawn_rate, "uniform")
        before = old[where]
        factor = np.float32(1) + _RELATIVE_STEP * rng.standard_normal(where.size, dtype=np.float32)
        after = to_bfloat16(to_float32(before) * factor)
        moved = before != after
        return old, Changes(where[moved], before[moved], after[moved])


Change: TypeAlias = AdamW | Relative


def named_change(rate: float) -> tuple[str, Change]:
    """AdamW-like for up to 1%, which training reaches; the paper's stress case above."""
    return ("adamw", AdamW(rate)) if rate <= 0.01 else ("relative", Relative(rate))


def chunks(num_elements: int) -> Iterator[tuple[int, int]]:
    """Start and end of consecutive chunks."""
    for start in range(0, num_elements, CHUNK_ELEMENTS):
        yield start, min(start + CHUNK_ELEMENTS, num_elements)


def change_of(change: Change, seed: tuple[int, ...], num_elements: int) -> tuple[Words, Changes]:
    """Bits [N] and changes of one tensor, made chunk by chunk."""
    words = np.empty(num_elements, np.uint16)
    parts: list[Changes] = []
    for start, end in chunks(num_elements):
        rng = np.random.default_rng((*seed, start))
        words[start:end], part = change.step(rng, weights(rng, end - start))
        parts.append(Changes(part.locations + start, part.old, part.new))
    return words, Changes(
        np.concatenate([part.locations for part in parts]),
        np.concatenate([part.old for part in parts]),
        np.concatenate([part.new for part in parts]),
    )


def _changed(before: Float32, after: Float32) -> tuple[Words, Changes]:
    old, new = to_bfloat16(before), to_bfloat16(after)
    where = np.flatnonzero(old != new)
    return old, Changes(where, old[where], new[where])


def _adamw_updates(rng: np.random.Generator) -> Float32:
    """Update directions m / sqrt(v) after some steps, float32 [K]."""
    first, second = np.zeros(_POOL_ELEMENTS, np.float32), np.zeros(_POOL_ELEMENTS, np.float32)
    decay_1, decay_2 = map(np.float32, _BETAS)
    for _ in range(_ADAMW_STEPS):
        gradient = rng.standard_normal(_POOL_ELEMENTS, dtype=np.float32)
        gradient *= np.exp(rng.standard_normal(dtype=np.float32))  # batches differ in scale
        first += (np.float32(1) - decay_1) * (gradient - first)
        second += (np.float32(1) - decay_2) * (gradient * gradient - second)
    scale_1, scale_2 = 1 - _BETAS[0] ** _ADAMW_STEPS, 1 - _BETAS[1] ** _ADAMW_STEPS
    updates: Float32 = first / np.float32(scale_1)
    updates /= np.sqrt(second / np.float32(scale_2)) + np.float32(1e-8)
    return updates
