"""How the receiver steers a vLLM engine of this process (DESIGN R19).

``http_control`` has the way to a server that somebody else started.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, TypeVar

from dcr.errors import Unreachable
from dcr.receiver.workers.line import Line
from dcr.receiver.workers.loop import EngineLoop
from dcr_adapters.vllm import settings

T = TypeVar("T")


class AsyncEngineControl:
    """An ``AsyncLLM`` of this process, whose event loop runs in another thread than the caller's."""

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop, *, deadline_s: float = 600.0) -> None:
        """Raises ConfigError: the engine is several data parallel replicas."""
        settings.require_one_engine(engine.vllm_config)
        self._engine = engine
        self._wait = EngineLoop(loop, deadline_s).wait

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """See ``EngineControl``."""
        answers: list[dict[str, Any]] = self._wait(self._engine.collective_rpc("dcr_call", args=(calls,)))
        return answers

    def pause(self) -> None:
        """See ``EngineControl``."""
        self._wait(self._engine.pause_generation(mode="keep", clear_cache=False))

    def resume(self) -> None:
        """See ``EngineControl``."""
        self._wait(self._engine.resume_generation())

    def reset_caches(self) -> None:
        """See ``EngineControl``."""
        reset = self._engine.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        _require_reset(self._wait(reset))
        self._wait(self._engine.reset_encoder_cache())

    def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        self._wait(self._engine.update_weight_version(version))


class OfflineControl:
    """An ``LLM``, which takes one call at a time: ``generate`` belongs inside ``alone``, see ``OfflineGate``.

    Implements ``OfflineEngine``.
    """

    def __init__(self, llm: Any) -> None:
        """Raises ConfigError: the engine is several data parallel replicas."""
        settings.require_one_engine(llm.llm_engine.vllm_config)
        self._llm = llm
        self._line = Line()

    def alone(self) -> AbstractContextManager[None]:
        """See ``OfflineEngine``."""
        return self._line.held()

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """See ``EngineControl``; waits while another thread generates."""
        ask = partial(self._llm.collective_rpc, "dcr_call", args=(calls,))
        answers: list[dict[str, Any]] = self._asked(ask)
        return answers

    def pause(self) -> None:
        """Nothing runs between two calls of ``generate``."""

    def resume(self) -> None:
        """Nothing was held."""

    def reset_caches(self) -> None:
        """See ``EngineControl``."""
        reset = partial(self._llm.reset_prefix_cache, reset_running_requests=True, reset_connector=True)
        _require_reset(self._asked(reset))
        self._asked(self._llm.llm_engine.reset_encoder_cache)

    def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        self._asked(partial(self._llm.llm_engine.set_weight_version, version))

    def _asked(self, call: Callable[[], T]) -> T:
        """What the engine answers this thread. Raises Unreachable: it is dead."""
        try:
            with self._line.held():
                return call()
        except Exception as err:  # the border: vLLM raises classes of its own
            raise Unreachable(f"the engine does not answer: {type(err).__name__}: {err}") from err


def _require_reset(success: object) -> None:
    if success is False:
        raise Unreachable("vLLM did not reset its prefix cache; no request may see old KV")
