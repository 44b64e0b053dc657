"""Real engines of the lane: an ``Engine``, its event loop in a thread, and what requests to it answer."""

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.lanes.shared.engine import Said
from tests.lanes.shared.run import Run

from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr_adapters.sglang.control import AsyncEngineControl
from dcr_adapters.sglang.messages import LOADER

if TYPE_CHECKING:
    from concurrent.futures import Future


@dataclass(slots=True)
class SglangServed:
    """An engine, and the loop that it lives on."""

    engine: Any
    loop: asyncio.AbstractEventLoop
    control: AsyncEngineControl
    gate: EngineGate
    counts: dict[str, int] = field(default_factory=dict)
    _workers: Workers | None = None

    def ask(self, prompt: Sequence[int], num_tokens: int = 12) -> Said:
        """See ``Served``."""
        return self.begin(prompt, num_tokens).result(300)

    def begin(self, prompt: Sequence[int], num_tokens: int, name: str = "") -> "Future[Said]":
        """See ``Served``."""
        return asyncio.run_coroutine_threadsafe(self._generate(prompt, num_tokens, name), self.loop)

    def receiver(self, run: Run, folder: Path) -> ReceiverAgent:
        """See ``Served``."""
        return run.receiver("engine", self.workers(folder), self.gate)

    def workers(self, folder: Path) -> Workers:
        """The engine's only front: workers obey the latest one alone."""
        if self._workers is None:
            self._workers = Workers(self.control, folder=folder)
        return self._workers

    def checksums(self) -> list[dict[str, str]]:
        """SGLang's own, by rank: of every parameter and buffer."""
        from sglang.srt.managers.io_struct import CheckWeightsReqInput

        asked = self.engine.tokenizer_manager.check_weights(CheckWeightsReqInput(action="checksum"), None)
        done, message, ranks, _ = asyncio.run_coroutine_threadsafe(asked, self.loop).result(60)
        assert done, message
        return [rank["checksums"] for rank in ranks]

    async def _generate(self, prompt: Sequence[int], num_tokens: int, name: str) -> Said:
        params = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
        stream = await self.engine.async_generate(input_ids=list(prompt), sampling_params=params, stream=True)
        tokens: list[int] = []
        last: Any = None
        async for last in stream:
            tokens = list(last["output_ids"])
            self.counts[name] = len(tokens)
        told = last["meta_info"]
        spans = [(str(s["version"]), int(s["start"]), int(s["end"])) for s in told["weight_versions"]]
        return Said(tokens, int(told["cached_tokens"]), spans)


@contextmanager
def served(
    model: Path, tp: int = 1, loader: str = LOADER, *, speaks: bool = False, **options: Any
) -> Iterator[SglangServed]:
    """An engine that takes deltas. Only in a process of its own: SGLang ends it when a worker dies.

    ``speaks``: it has the model's tokenizer, without which it knows no grammars.
    """
    import sglang

    os.environ["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank % 2) for rank in range(tp))
    engine = sglang.Engine(
        model_path=str(model),
        tp_size=tp,
        device="cpu",
        dtype="bfloat16",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        skip_tokenizer_init=not speaks,
        disable_cuda_graph=True,
        max_total_tokens=4096,
        max_running_requests=4,
        mem_fraction_static=0.1,
        skip_server_warmup=True,
        log_level="warning",
        custom_weight_loader=[loader],
        **options,
    )
    thread = threading.Thread(target=engine.loop.run_forever, name="engine", daemon=True)
    thread.start()
    control = AsyncEngineControl(engine, engine.loop, loader=loader)
    try:
        yield SglangServed(engine, engine.loop, control, EngineGate(control))
    finally:
        engine.loop.call_soon_threadsafe(engine.loop.stop)
        thread.join(30)
        engine.shutdown()
