"""The ``vllm`` runtime behind a serving process: generation and storage of one ``AsyncLLM``.

Legend: G responses of a group, L prompt tokens, T new tokens.
"""

import asyncio
import itertools
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from dcr.errors import ConfigError, Unreachable
from dcr.receiver.workers.ranks import RemoteRank, Workers
from dcr_recipes.runtime.dump import join_dumps, rank_file
from dcr_recipes.runtime.files import dense_tensors
from dcr_recipes.runtime.ports import CacheCounts, Group, Probed

T = TypeVar("T")


class LoopThread:
    """The event loop of one engine, in a daemon thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, name="engine", daemon=True).start()

    def wait(self, step: Coroutine[Any, Any, T]) -> T:
        """The result of ``step``; called from any other thread. Raises what it raised."""
        return asyncio.run_coroutine_threadsafe(step, self.loop).result()


class _Asked(NamedTuple):
    """One finished request; ``num_cached`` of its prompt tokens came from the prefix cache."""

    tokens: list[int]
    logprobs: list[float]
    num_cached: int


class VllmEngine:
    """Implements ``Engine``. Tokens come from vLLM's own sampler, one generator per request's seed.

    A group is added while generation is paused, in order, and then runs as one batch. Rollouts do not
    read the prefix cache: a hit prefills another shape, and so other last bits. The probe does.
    """

    def __init__(self, engine: Any, thread: LoopThread) -> None:
        self._engine = engine
        self._thread = thread
        self._numbers = itertools.count()
        self._hits = self._misses = self._clears = 0

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
        """See ``Engine.probe``.

        The comparison is with the same request after the cache was emptied: and if the cache answered,
        with the one after that, which is answered by what the emptied cache was filled with.
        """
        served = self._probe_once(prompt, max_new_tokens)
        hit = served.num_cached > 0
        self._hits, self._misses = self._hits + hit, self._misses + (not hit)
        is_stale = False
        if fresh:
            self._thread.wait(self._engine.reset_prefix_cache())
            again = self._probe_once(prompt, max_new_tokens)
            if hit:
                again = self._probe_once(prompt, max_new_tokens)
            is_stale = served != again
        return Probed(served.tokens, served.logprobs, hit, is_stale)

    def call_workers(self, method: str, arguments: tuple[object, ...]) -> object:
        """Run ``method`` on every worker; their answers in rank order. Raises Unreachable."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            return self._thread.wait(self._engine.collective_rpc(method, args=arguments))
        except EngineDeadError as err:
            raise Unreachable(f"the engine died: {err}") from err

    def clear(self) -> None:
        """The engine's own gate empties its caches; counted here."""
        self._clears += 1

    def cache(self) -> CacheCounts:
        """See ``Engine.cache``; counts probes, the only requests that read the cache."""
        return CacheCounts(self._hits, self._misses, self._clears)

    def _probe_once(self, prompt: list[int], max_new_tokens: int) -> _Asked:
        (asked,) = self._ask(prompt, [_params(0, max_new_tokens, 1.0, reads_cache=True)])
        return asked

    def _ask(self, prompt: list[int], params: Sequence[Any]) -> list[_Asked]:
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

    async def _batch(self, prompt: list[int], params: Sequence[Any]) -> list[_Asked]:
        """All requests reach the scheduler before it may take the first, so they are one batch."""
        await self._engine.pause_generation(mode="keep", clear_cache=False)
        try:
            asked = [
                await self._engine.add_request(
                    f"request-{next(self._numbers)}", {"prompt_token_ids": prompt}, each
                )
                for each in params
            ]
        finally:
            await self._engine.resume_generation()
        return [_finished(await each.get()) for each in asked]


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


def _finished(output: Any) -> _Asked:
    made = output.outputs[0]
    tokens = [int(token) for token in made.token_ids]
    logprobs = [float(at[token].logprob) for at, token in zip(made.logprobs, tokens, strict=True)]
    return _Asked(tokens, logprobs, output.num_cached_tokens or 0)


class VllmStorage:
    """Implements ``Storage`` over the workers of one engine. ``call`` has all run a method with arguments."""

    def __init__(self, call: Callable[[str, tuple[object, ...]], object], workers: Workers) -> None:
        self._call = call
        self._ranks = [RemoteRank(workers, greeting.rank) for greeting in workers.greetings]
        self._pool = ThreadPoolExecutor(len(self._ranks), "storage")

    def dump(self, path: Path, share: float, sample: str) -> int:
        """See ``Storage.dump``; names of several ranks begin with ``rank-<rank>/``."""
        self._call("dcr_dump", (str(path), share, sample))
        parts = {f"rank-{rank}": rank_file(path, rank) for rank in range(len(self._ranks))}
        num_bytes = join_dumps(path, parts)
        for part in parts.values():
            part.unlink()
        return num_bytes

    def load(self, path: Path) -> None:
        """See ``Storage.load``."""
        for _ in dense_tensors(path):  # a broken file is found here, before a weight is touched
            break
        list(self._pool.map(lambda rank: rank.load_dense(path), self._ranks))
