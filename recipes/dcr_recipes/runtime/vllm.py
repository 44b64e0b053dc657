"""The ``vllm`` runtime behind a serving process: generation and storage of one ``AsyncLLM``.

Legend: G responses of a group, L prompt tokens, T new tokens.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from dcr.errors import ConfigError, Unreachable
from dcr.receiver.workers.ranks import Workers
from dcr_recipes.runtime.ports import CacheCounts, Group, Probed
from dcr_recipes.runtime.prefix_probe import Asked, PrefixProbe
from dcr_recipes.runtime.ranks import RanksStorage

T = TypeVar("T")


class LoopThread:
    """The event loop of one engine, in a daemon thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="engine", daemon=True).start()

    def wait(self, step: Coroutine[Any, Any, T]) -> T:
        """The result of ``step``; called from any other thread. Raises what it raised."""
        return asyncio.run_coroutine_threadsafe(step, self.loop).result()


class VllmEngine:
    """Implements ``Engine``. Tokens come from vLLM's own sampler, one generator per request's seed.

    A group is added while generation is paused, in order, and then runs as one batch. Rollouts do not
    read the prefix cache: a hit prefills another shape, and so other last bits. The probe does.
    """

    def __init__(self, engine: Any, thread: LoopThread) -> None:
        self._engine = engine
        self._thread = thread
        self._numbers = itertools.count()
        self._cache = PrefixProbe(self._probe_once, self._empty)

    def generate(
        self, prompt: list[int], seeds: list[int], *, max_new_tokens: int, temperature: float
    ) -> Group:
        """See ``Engine.generate``.

        Raises:
            ConfigError: vLLM refuses the prompt, for example because it is too long.
            Unreachable: the engine died.
        """
        params = [_params(seed, max_new_tokens, temperature, reads_cache=False) for seed in seeds]
        made = self._ask(prompt, params)
        return Group([each.tokens for each in made], [each.logprobs for each in made])

    def probe(self, prompt: list[int], max_new_tokens: int, *, fresh: bool) -> Probed:
        """See ``Engine.probe`` and ``PrefixProbe``."""
        return self._cache.probe(prompt, max_new_tokens, fresh=fresh)

    def call_workers(self, method: str, arguments: tuple[object, ...]) -> object:
        """Run ``method`` on every worker; their answers in rank order. Raises Unreachable."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return self._thread.wait(self._engine.collective_rpc(method, args=arguments))
        except EngineDeadError as err:
            raise Unreachable(f"the engine died: {err}") from err

    def clear(self) -> None:
        """See ``PrefixProbe.clear``."""
        self._cache.clear()

    def cache(self) -> CacheCounts:
        """See ``Engine.cache``; of probes alone."""
        return self._cache.counts()

    def _probe_once(self, prompt: list[int], max_new_tokens: int) -> Asked:
        (asked,) = self._ask(prompt, [_params(0, max_new_tokens, 1.0, reads_cache=True)])
        return asked

    def _empty(self) -> bool:
        return bool(self._thread.wait(self._engine.reset_prefix_cache()))

    def _ask(self, prompt: list[int], params: Sequence[Any]) -> list[Asked]:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        try:
            return self._thread.wait(self._batch(prompt, params))
        except (ValueError, VLLMClientError) as err:
            raise ConfigError(
                f"vLLM refuses a prompt of {len(prompt)} tokens (runtime.context_tokens bounds it): {err}"
            ) from err
        except (EngineDeadError, EngineGenerateError) as err:
            raise Unreachable(f"the engine died: {err}") from err

    async def _batch(self, prompt: list[int], params: Sequence[Any]) -> list[Asked]:
        """All requests reach the scheduler before it may take the first, so they are one batch."""
        names = [f"request-{next(self._numbers)}" for _ in params]
        await self._engine.pause_generation(mode="keep", clear_cache=False)
        try:
            try:
                asked = [
                    await self._engine.add_request(name, {"prompt_token_ids": prompt}, each)
                    for name, each in zip(names, params, strict=True)
                ]
            finally:
                await self._engine.resume_generation()
            return [_finished(await each.get()) for each in asked]
        except BaseException:
            await self._engine.abort(names)  # what is left would run beside the next group
            raise


def _params(seed: int, max_new_tokens: int, temperature: float, *, reads_cache: bool) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=temperature,
        seed=seed,
        max_tokens=max_new_tokens,
        ignore_eos=True,  # a fixed shape; the caller masks what comes after the end
        detokenize=False,
        logprobs=0,
        skip_reading_prefix_cache=not reads_cache,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _finished(output: Any) -> Asked:
    made = output.outputs[0]
    tokens = [int(token) for token in made.token_ids]
    logprobs = [float(at[token].logprob) for at, token in zip(made.logprobs, tokens, strict=True)]
    return Asked(tokens, logprobs, output.num_cached_tokens or 0)


def storage_of(workers: Workers, call: Callable[[str, tuple[object, ...]], object]) -> RanksStorage:
    """``Storage`` over the workers of one engine. ``call`` has all run a method with arguments."""
    return RanksStorage(workers, lambda asked: call("dcr_dump", (asked.path, asked.share, asked.sample)))
