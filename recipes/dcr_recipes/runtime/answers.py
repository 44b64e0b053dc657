"""What a serving process answers; everything here travels as JSON."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerateAnswer:
    """Responses to several prompts, all made with ``version``.

    ``tokens`` [P][G][T] and ``logprobs`` [P][G][T] (float32 values) are in the order of the request.
    """

    version: int
    tokens: list[list[list[int]]]
    logprobs: list[list[list[float]]]


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """A short continuation of a fixed prompt: ``tokens`` [T] and ``logprobs`` [T] under ``version``.

    ``hit``: the prompt was in the cache.
    """

    version: int
    hit: bool
    tokens: list[int]
    logprobs: list[float]


@dataclass(frozen=True, slots=True)
class RuntimeStatus:
    """What a serving process says of itself; ``version`` is -1 before its first opening.

    ``prompt_cache_*`` count since it started, see ``CacheCounts``; all 0 without a cache.
    """

    name: str
    process: int
    version: int
    is_open: bool
    num_answers: int
    prompt_cache_hits: int = 0
    prompt_cache_misses: int = 0
    prompt_cache_clears: int = 0
    prompt_cache_bytes: int = 0


def bits(logprobs: Iterable[float]) -> list[str]:
    """Equal if and only if the bits of ``logprobs`` are: -0.0 is not 0.0, and a NaN is one, as in JSON."""
    return [float(logprob).hex() for logprob in logprobs]
