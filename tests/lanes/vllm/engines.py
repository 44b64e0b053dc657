"""Real engines of the lane: an AsyncLLM with its own event loop thread, and what requests to it answer."""

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lanes.shared.engine import PATIENCE_S, Said
from tests.lanes.shared.run import Run

from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr_adapters.vllm.control import AsyncEngineControl
from dcr_adapters.vllm.plugin import EXTENSION


@dataclass(slots=True)
class Served:
    """An engine, and the loop that it lives on."""

    engine: Any
    loop: asyncio.AbstractEventLoop
    control: AsyncEngineControl
    gate: EngineGate
    counts: dict[str, int] = field(default_factory=dict)

    def ask(self, prompt: Sequence[int], num_tokens: int = 12) -> Said:
        """The greedy answer to ``prompt``."""
        said: Said = self.begin(prompt, num_tokens).result(PATIENCE_S)
        return said

    def begin(self, prompt: Sequence[int], num_tokens: int, name: str = "") -> Any:
        """A future of the answer; ``counts[name]`` follows how many tokens have come."""
        return asyncio.run_coroutine_threadsafe(self._generate(prompt, num_tokens, name), self.loop)

    def receiver(self, run: Run, folder: Path) -> ReceiverAgent:
        """This engine as an instance of ``run``."""
        return run.receiver("engine", Workers(self.control, folder=folder), self.gate)

    async def _generate(self, prompt: Sequence[int], num_tokens: int, name: str) -> Said:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, detokenize=False)
        last: Any = None
        request = f"{name}-{os.urandom(4).hex()}"
        async for last in self.engine.generate({"prompt_token_ids": list(prompt)}, params, request):
            self.counts[name] = len(last.outputs[0].token_ids)
        out = last.outputs[0]
        spans = [(s.version, s.start, s.end) for s in out.weight_versions or ()]
        return Said(list(out.token_ids), last.num_cached_tokens or 0, spans)


@contextmanager
def served(model: Path, tp: int = 1, extension: str = EXTENSION, **options: Any) -> Iterator[Served]:
    """An engine that takes deltas."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="engine", daemon=True)
    thread.start()
    with _bound(tp):
        arguments = AsyncEngineArgs(
            model=str(model),
            tensor_parallel_size=tp,
            dtype="bfloat16",
            max_model_len=1024,
            max_num_seqs=4,
            enforce_eager=True,
            kv_cache_memory_bytes=64 << 20,
            skip_tokenizer_init=True,
            worker_extension_cls=extension,
            **options,
        )

        async def start() -> Any:
            return AsyncLLM.from_engine_args(arguments)

        engine = asyncio.run_coroutine_threadsafe(start(), loop).result(PATIENCE_S)
    control = AsyncEngineControl(engine, loop)
    try:
        yield Served(engine, loop, control, EngineGate(control))
    finally:
        loop.call_soon_threadsafe(engine.shutdown)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


@contextmanager
def _bound(tp: int) -> Iterator[None]:
    """Several workers on the CPU need to be told their cores; one core each, to compare tokens."""
    name, value = "VLLM_CPU_OMP_THREADS_BIND", "|".join(str(rank % 2) for rank in range(tp))
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
