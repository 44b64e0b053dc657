"""The ``sglang`` runtime behind a serving process: generation of one ``Engine``.

Legend: G responses of a group, L prompt tokens, T new tokens.
"""

import asyncio
import itertools
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from dcr.errors import ConfigError, Unreachable
from dcr_recipes.runtime.ports import CacheCounts, Group, Probed
from dcr_recipes.runtime.prefix_probe import Asked, PrefixProbe

T = TypeVar("T")
_POLL_S = 0.002
_WAY_S = 60.0
_HALF = 1 << 63


class SglangEngine:
    """Implements ``Engine``. Tokens come from SGLang's sampler, by each request's own seed.

    The scheduler is held until it has all requests of a group, which then run as one batch. Rollouts have
    a part of the prefix cache of their own each: a hit prefills another shape, and so other last bits.
    """

    def __init__(self, engine: Any) -> None:
        """From now on ``engine``'s event loop runs in a thread of its own."""
        self._engine = engine
        self._numbers = itertools.count()
        self._cache = PrefixProbe(self._probe_once, self._empty)
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
        """See ``Engine.probe`` and ``PrefixProbe``."""
        return self._cache.probe(prompt, max_new_tokens, fresh=fresh)

    def clear(self) -> None:
        """See ``PrefixProbe.clear``."""
        self._cache.clear()

    def cache(self) -> CacheCounts:
        """See ``Engine.cache``; of probes alone."""
        return self._cache.counts()

    def _probe_once(self, prompt: list[int], max_new_tokens: int) -> Asked:
        (asked,) = self._wait(self._batch(prompt, [_params(0, max_new_tokens, 1.0)], [None]))
        return asked

    def _empty(self) -> bool:
        return bool(self._wait(self._engine.tokenizer_manager.flush_cache()).success)

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
    ) -> list[Asked]:
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
            try:
                await self._await_dispatch(names, asked)
            finally:
                await manager._async_dispatch_to_scheduler(
                    ContinueGenerationReqInput(torch_empty_cache=False)
                )
            return list(await asyncio.gather(*asked))
        except BaseException:
            await self._abort(names, asked)
            raise

    async def _abort(self, names: list[str], asked: "Sequence[asyncio.Future[Asked]]") -> None:
        """End what is left of a group, which would run beside the next one."""
        for name in names:
            self._engine.tokenizer_manager.abort_request(name)
        for each in asked:
            each.cancel()
        await asyncio.gather(*asked, return_exceptions=True)

    async def _await_dispatch(self, names: list[str], asked: "Sequence[asyncio.Future[Asked]]") -> None:
        """Until all requests are on their way, in which none overtakes another, or one was refused."""
        known, end = self._engine.tokenizer_manager.rid_to_state, asyncio.get_running_loop().time() + _WAY_S
        while not all(name in known and known[name].dispatched for name in names):
            if any(each.done() for each in asked):
                return
            if asyncio.get_running_loop().time() > end:
                raise Unreachable(f"requests did not leave for the scheduler in {_WAY_S:g} s")
            await asyncio.sleep(_POLL_S)

    async def _ask(self, prompt: list[int], params: dict[str, Any], salt: str | None, name: str) -> Asked:
        made = await self._engine.async_generate(
            input_ids=list(prompt), sampling_params=params, return_logprob=True, cache_salt=salt, rid=name
        )
        told = made["meta_info"]
        logprobs = [float(logprob) for logprob, *_ in told["output_token_logprobs"]]
        return Asked([int(token) for token in made["output_ids"]], logprobs, int(told["cached_tokens"]))


def _params(seed: int, max_new_tokens: int, temperature: float) -> dict[str, Any]:
    return {
        "temperature": temperature,
        "sampling_seed": (seed + _HALF) % (2 * _HALF) - _HALF,  # the same 64 bits, signed
        "max_new_tokens": max_new_tokens,
        "ignore_eos": True,  # a fixed shape; the caller masks what comes after the end
    }
