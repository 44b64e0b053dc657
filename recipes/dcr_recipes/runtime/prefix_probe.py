"""The prefix cache of an inference engine as probes see it: is anything of it left from other weights?

Legend: L prompt tokens, T new tokens.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from dcr.errors import Unreachable
from dcr_recipes.runtime.answers import bits
from dcr_recipes.runtime.ports import CacheCounts, Probed

_PATIENCE_S = 60.0
_POLL_S = 0.01


class Asked(NamedTuple):
    """One finished request; ``num_cached`` of its prompt tokens came from the prefix cache."""

    tokens: list[int]
    logprobs: list[float]
    num_cached: int


class PrefixProbe:
    """Counts probes, the only requests that read the cache.

    ``ask`` continues a prompt [L] by so many tokens with one fixed seed. ``empty`` empties the cache and says
    whether it did: an engine may tell a request's last token before it is done with the request.
    """

    def __init__(self, ask: Callable[[list[int], int], Asked], empty: Callable[[], bool]) -> None:
        self._ask = ask
        self._empty = empty
        self._hits = self._misses = self._clears = 0

    def probe(self, prompt: list[int], max_new_tokens: int, *, fresh: bool) -> Probed:
        """See ``Engine.probe``.

        The comparison is with the same request after the cache was emptied: and if the cache answered,
        with the one after that, which is answered by what the emptied cache was filled with.

        Raises:
            Unreachable: the cache could not be emptied, so nothing is known of the answer.
        """
        served = self._ask(prompt, max_new_tokens)
        hit = served.num_cached > 0
        self._hits, self._misses = self._hits + hit, self._misses + (not hit)
        is_stale = False
        if fresh:
            self._require_empty()
            again = self._ask(prompt, max_new_tokens)
            if hit:
                again = self._ask(prompt, max_new_tokens)
            is_stale = _differ(served, again)
        return Probed(served.tokens, served.logprobs, hit, is_stale)

    def clear(self) -> None:
        """The engine's own gate empties its caches; counted here."""
        self._clears += 1

    def counts(self) -> CacheCounts:
        """See ``Engine.cache``."""
        return CacheCounts(self._hits, self._misses, self._clears)

    def _require_empty(self) -> None:
        end = time.monotonic() + _PATIENCE_S
        while not self._empty():
            if time.monotonic() >= end:
                raise Unreachable(f"the engine did not empty its prefix cache in {_PATIENCE_S:g} s")
            time.sleep(_POLL_S)


def _differ(one: Asked, other: Asked) -> bool:
    """Whether another shape was computed, or a token or a bit of a log probability is another one."""
    alike = one.num_cached == other.num_cached and one.tokens == other.tokens
    return not alike or bits(one.logprobs) != bits(other.logprobs)
