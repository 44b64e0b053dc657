"""What a serving process needs of the runtime in it.

Legend: G responses of a group, L prompt tokens, T new tokens.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Group:
    """Responses to one prompt: ``tokens`` [G][T], and ``logprobs`` [G][T] of the distribution drawn from."""

    tokens: list[list[int]]
    logprobs: list[list[float]]


@dataclass(frozen=True, slots=True)
class Probed:
    """One response, ``tokens`` [T] and ``logprobs`` [T], to a prompt asked as any request is.

    ``hit``: its prompt was in the cache. ``is_stale``: computed afresh it was another answer.
    """

    tokens: list[int]
    logprobs: list[float]
    hit: bool
    is_stale: bool


@dataclass(frozen=True, slots=True)
class CacheCounts:
    """Prompts looked up, by outcome, and clearings, since the process started; bytes held now."""

    hits: int = 0
    misses: int = 0
    clears: int = 0
    num_bytes: int = 0


class Engine(Protocol):
    """Generates. ``generate`` and ``probe`` are called one at a time, ``cache`` at any time."""

    def generate(
        self, prompt: list[int], seeds: list[int], *, max_new_tokens: int, temperature: float
    ) -> Group:
        """One response per seed to ``prompt`` [L]; they depend on weights, prompt and seeds alone."""
        ...

    def probe(self, prompt: list[int], max_new_tokens: int, *, fresh: bool) -> Probed:
        """Continue ``prompt`` [L] with one fixed seed; with ``fresh``, computed anew as well and compared."""
        ...

    def clear(self) -> None:
        """Forget what depends on the weights: they have changed. No request is in flight."""
        ...

    def cache(self) -> CacheCounts:
        """Counts for status and metrics; never waits."""
        ...


class Storage(Protocol):
    """The stored tensors of one instance, all ranks of it. The gate is closed or nothing is written."""

    def dump(self, path: Path, share: float, sample: str) -> int:
        """Write the raw bytes of every parameter and buffer, see ``dcr_recipes.runtime.dump``.

        ``share`` below 1: of the part of them that ``sample`` picks. Returns the number of bytes.
        """
        ...

    def load(self, path: Path) -> None:
        """Load every tensor of a safetensors file through the stock loader, post-load step included.

        Raises:
            PayloadError: the file is missing or broken.
        """
        ...
