"""The ``sglang`` runtime behind a serving process: generation of one ``Engine``.

Legend: G responses of a group, L prompt tokens, T new tokens.
"""

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from dcr.errors import ConfigError, Unreachable
from dcr_recipes.runtime.ports import CacheCounts, Group, Probed

T = TypeVar("T")
_POLL_S = 0.002
_WAY_S = 60.0
_HALF = 1 << 63


class _Asked(NamedTuple):
    """One finished request; ``num_cached`` of its prompt tokens came from the prefix cache."""

    tokens: list[int]
    logprobs: list[float]
    num_cached: int


class SglangEngine:
    """Implements ``Engine``. Tokens come from SGLang's sampler, by each request's own seed.

    The scheduler is held until it has all requests of a group, which then run as one batch. Rollouts have
    a part of the prefix cache of their own each: a hit prefills another shape, and so other last bits.
    """

    def __init__(self, engine: Any) -> None:
        """From now on ``engine``'s event loop runs in a thread of its own."""
        self._engine = engine
        self._numbers = itertools.count()
        self._hits = self._misses = self._clears = 0
        threading.Thread(target=engine.loop.run_forever, name="engine", daemon=True).start()

    def generate(
        self, prompt: list[int], seeds: list[int], *, max_new_tokens: int, temperature: float
    ) -> Group:
        """See ``Engine.generate``.

        Raises:
            ConfigError: SGLang refuses the prompt, for example because it is too long.
            Unreachable: the requests did not leave for the scheduler.
        """
        salts = [f"rollout-{next(self._numbers)}" for _ in seeds]
        made = self._wait(
            self._batch(prompt, [_params(seed, max_new_tokens, temperature) for seed in seeds], salts)
        )
        return Group([each.tokens for each in made], [each.logprobs for each in made])

    def probe(self, prompt: list[int], max_new_tokens: int, *, fresh: bool) -> Probed:
        """See ``Engine.probe``.

        The comparison is with the same request after the cache was emptied: and if the cache answered,
        with the one after that, which is answered by what the emptied cache was filled with.
        """
        served = self._probe_once(prompt, max_new_tokens)
        hit = served.num_cached > 0
        self._hits, self._misses = self._hits + hit, self._misses + (not hit)
        is_stale = False
        if fresh:
            self._wait(self._flush())
            again = self._probe_once(prompt, max_new_tokens)
            if hit:
                again = self._probe_once(prompt, max_new_tokens)
            is_stale = served != again
        return Probed(served.tokens, served.logprobs, hit, is_stale)

    def clear(self) -> None:
        """The engine's own gate empties its caches; counted here."""
        self._clears += 1

    def cache(self) -> CacheCounts:
        """See ``Engine.cache``; counts probes, the only requests that read the cache."""
        return CacheCounts(self._hits, self._misses, self._clears)

    def _probe_once(self, prompt: list[int], max_new_tokens: int) -> _Asked:
        (asked,) = self._wait(self._batch(prompt, [_params(0, max_new_tokens, 1.0)], [None]))
        return asked

    def _wait(self, step: Coroutine[Any, Any, T]) -> T:
        """The result of ``step``. If a worker dies meanwhile, SGLang kills this process too."""
        try:
            return asyncio.run_coroutine_threadsafe(step, self._engine.loop).result()
        except ValueError as err:
            raise ConfigError(
                f"SGLang refuses a prompt (runtime.context_tokens bounds its length): {err}"
            ) from err

    async def _batch(
        self, prompt: list[int], params: list[dict[str, Any]], salts: Sequence[str | None]
    ) -> list[_Asked]:
        """The scheduler takes no step before it has all requests. No other one is under way."""
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput, PauseGenerationReqInput

        manager = self._engine.tokenizer_manager
        manager.auto_create_handle_loop()
        await manager._async_dispatch_to_scheduler(PauseGenerationReqInput(mode="retract"))
        names = [f"request-{next(self._numbers)}" for _ in params]
        asked = [
            asyncio.ensure_future(self._ask(prompt, *each)) for each in zip(params, salts, names, strict=True)
        ]
        try:
            await self._await_dispatch(names, asked)
        finally:
            await manager._async_dispatch_to_scheduler(ContinueGenerationReqInput(torch_empty_cache=False))
        return list(await asyncio.gather(*asked))

    async def _await_dispatch(self, names: list[str], asked: "Sequence[asyncio.Future[_Asked]]") -> None:
        """Until all requests are on their way, in which none overtakes another, or one was refused."""
        known, end = self._engine.tokenizer_manager.rid_to_state, asyncio.get_running_loop().time() + _WAY_S
        while not all(name in known and known[name].dispatched for name in names):
            if any(each.done() for each in asked):
                return
            if asyncio.get_running_loop().time() > end:
                raise Unreachable(f"requests did not leave for the scheduler in {_WAY_S:g} s")
            await asyncio.sleep(_POLL_S)

    async def _ask(self, prompt: list[int], params: dict[str, Any], salt: str | None, name: str) -> _Asked:
        made = await self._engine.async_generate(
            input_ids=list(prompt), sampling_params=params, return_logprob=True, cache_salt=salt, rid=name
        )
        told = made["meta_info"]
        logprobs = [float(logprob) for logprob, *_ in told["output_token_logprobs"]]
        return _Asked([int(token) for token in made["output_ids"]], logprobs, int(told["cached_tokens"]))

    async def _flush(self) -> None:
        """SGLang tells a request's last token before it is done with the request: it is waited for."""
        if not (await self._engine.tokenizer_manager.flush_cache(timeout_s=_WAY_S)).success:
            raise Unreachable(f"SGLang did not flush its cache in {_WAY_S:g} s")


def _params(seed: int, max_new_tokens: int, temperature: float) -> dict[str, Any]:
    return {
        "temperature": temperature,
        "sampling_seed": (seed + _HALF) % (2 * _HALF) - _HALF,  # the same 64 bits, signed
        "max_new_tokens": max_new_tokens,
        "ignore_eos": True,  # a fixed shape; the caller masks what comes after the end
    }
