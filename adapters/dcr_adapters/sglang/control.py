"""How the receiver steers an SGLang engine of this process (DESIGN R19).

``http_control`` has the way to a server that somebody else started.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from dcr.receiver.workers.loop import EngineLoop
from dcr_adapters.sglang.messages import LOADER
from dcr_adapters.sglang.steering import Steering


class AsyncEngineControl:
    """Implements ``EngineControl`` for an ``Engine`` whose event loop runs in a thread of its own.

    ``folder`` is readable by front and workers; answers pass through it.
    """

    def __init__(
        self,
        engine: Any,
        loop: asyncio.AbstractEventLoop,
        *,
        folder: Path | None = None,
        loader: str = LOADER,
        deadline_s: float = 600.0,
    ) -> None:
        """``loader``: import path of the custom weight loader that the engine was started with.

        Raises:
            ConfigError: the engine cannot take deltas as it was started; a call would end it.
        """
        folder = folder or Path(tempfile.gettempdir())
        self._steering = Steering(engine.tokenizer_manager, engine.server_args, folder, loader)
        self._wait = EngineLoop(loop, deadline_s).wait

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """See ``EngineControl``."""
        return self._wait(self._steering.call_workers(calls))

    def pause(self) -> None:
        """See ``EngineControl``; requests in flight go back to the queue, without their keys and values."""
        self._wait(self._steering.pause())

    def resume(self) -> None:
        """See ``EngineControl``."""
        self._wait(self._steering.resume())

    def reset_caches(self) -> None:
        """See ``EngineControl``. Raises Unreachable if something is still being computed."""
        self._wait(self._steering.reset_caches())

    def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        self._wait(self._steering.set_version(version))
