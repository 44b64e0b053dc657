"""How the receiver steers an SGLang engine of this process (DESIGN R19).

``http_control`` has the way to a server that somebody else started.
"""

import asyncio
import json
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from dcr.errors import ConfigError, Unreachable
from dcr.model import from_json
from dcr.receiver.workers.messages import Calls
from dcr_adapters.sglang.messages import LOADER, Control, to_tensors

T = TypeVar("T")
_IDLE_S = 10.0
"""For how long what was still running when the pause came may take to end; SGLang refuses to flush before."""
_POLL_S = 0.05


class AsyncEngineControl:
    """Implements ``EngineControl`` for an ``Engine`` whose event loop runs in a thread of its own.

    ``folder`` is readable by front and workers; answers pass through it. Weights are only written while
    the gate is shut, so calls do not wait for requests in flight as SGLang's own entry points do.
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
        require_takes_calls(engine.server_args, loader)
        self._engine = engine
        self._loop = loop
        self._folder = folder or Path(tempfile.gettempdir())
        self._loader = loader
        self._deadline_s = deadline_s

    def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """See ``EngineControl``."""
        control = new_control(calls, self._folder)
        try:
            self._wait(self._call(control))
            return read_answers(control, int(self._engine.server_args.tp_size))
        finally:
            remove_answers(control, int(self._engine.server_args.tp_size))

    def pause(self) -> None:
        """See ``EngineControl``; requests in flight go back to the queue, without their keys and values."""
        self._wait(self._pause())

    def resume(self) -> None:
        """See ``EngineControl``."""
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        asked = ContinueGenerationReqInput(torch_empty_cache=False)
        self._wait(self._engine.tokenizer_manager.continue_generation(asked))

    def reset_caches(self) -> None:
        """See ``EngineControl``. Raises Unreachable if something is still being computed."""
        self._wait(self._reset_caches())

    def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

        asked = UpdateWeightVersionReqInput(new_version=version, abort_all_requests=False)
        self._wait(self._engine.tokenizer_manager.update_weight_version(asked))

    async def _pause(self) -> None:
        from sglang.srt.managers.io_struct import PauseGenerationReqInput

        manager = self._engine.tokenizer_manager
        await manager.pause_generation(PauseGenerationReqInput(mode="retract"))
        await manager.get_internal_state()  # the pause itself is not answered, but what follows it is

    async def _reset_caches(self) -> None:
        manager = self._engine.tokenizer_manager
        end = asyncio.get_running_loop().time() + _IDLE_S
        while not (done := await manager.flush_cache()).success:
            if asyncio.get_running_loop().time() >= end:
                raise Unreachable(
                    f"SGLang did not flush its cache; no request may see old KV: {done.message}"
                )
            await asyncio.sleep(_POLL_S)
        if self._engine.server_args.hicache_storage_backend is not None:
            cleared = await manager.clear_hicache_storage()
            if not cleared.success:
                raise Unreachable("SGLang did not clear its cache storage, and no request may see old KV")

    async def _call(self, control: Control) -> None:
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
        from sglang.srt.utils import MultiprocessingSerializer

        manager = self._engine.tokenizer_manager
        manager.auto_create_handle_loop()
        tensors, num_ranks = to_tensors(control), int(self._engine.server_args.tp_size)
        asked = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[  # each names a descriptor that only one process can receive
                MultiprocessingSerializer.serialize(tensors) for _ in range(num_ranks)
            ],
            load_format=self._loader,
            flush_cache=False,
            selector="target",
        )
        await self._begin(manager)
        try:
            _require((await manager.update_weights_from_tensor_communicator(asked))[0])
        finally:
            await self._end(manager)

    async def _begin(self, manager: Any) -> None:
        """SGLang opens a session around updates, since it has sessions."""
        if hasattr(manager, "begin_weight_update_communicator"):
            from sglang.srt.managers.io_struct import BeginWeightUpdateReqInput

            asked = BeginWeightUpdateReqInput(selector="target")
            _require((await manager.begin_weight_update_communicator(asked))[0])

    async def _end(self, manager: Any) -> None:
        if hasattr(manager, "end_weight_update_communicator"):
            from sglang.srt.managers.io_struct import EndWeightUpdateReqInput

            _require((await manager.end_weight_update_communicator(EndWeightUpdateReqInput()))[0])

    def _wait(self, step: Coroutine[Any, Any, T]) -> T:
        """The answer of ``step``, from the engine's loop. Raises Unreachable: the engine is dead or late."""
        future = asyncio.run_coroutine_threadsafe(step, self._loop)
        try:
            return future.result(self._deadline_s)
        except Unreachable:
            raise
        except Exception as err:  # the border: SGLang raises classes of its own
            future.cancel()
            raise Unreachable(f"the engine does not answer: {type(err).__name__}: {err}") from err


def require_takes_calls(settings: Any, loader: str) -> None:
    """Refuse an engine that a call would end, or that has more models than one.

    ``settings``: SGLang's server arguments, as an object.

    Raises:
        ConfigError: names the argument.
    """
    if loader not in (settings.custom_weight_loader or []):
        raise ConfigError(f"the engine does not know DCR: start SGLang with --custom-weight-loader {loader}")
    if settings.weight_cache_mode != "off":
        raise ConfigError(
            "the engine shares weights through a cache: start SGLang with --weight-cache-mode off"
        )
    for name in ("dp_size", "pp_size"):
        if getattr(settings, name) != 1:
            raise ConfigError(
                f"the engine has {name}={getattr(settings, name)}: give each replica an engine of its own, "
                "and no engine pipeline stages"
            )


def new_control(calls: str, folder: Path) -> Control:
    """``calls`` as JSON text, with a place for answers."""
    return Control(from_json(Calls, calls), str(folder / f"dcr-answer-{uuid4().hex}"))


def read_answers(control: Control, num_ranks: int) -> list[dict[str, Any]]:
    """Of every rank that has answered; those that could not are missed by who asked them."""
    files = [control.file(rank) for rank in range(num_ranks)]
    return [json.loads(file.read_bytes()) for file in files if file.exists()]


def remove_answers(control: Control, num_ranks: int) -> None:
    """They have been read, or nobody will."""
    for rank in range(num_ranks):
        control.file(rank).unlink(missing_ok=True)


def _require(done: Any) -> None:
    if not done.success:
        raise Unreachable(f"SGLang refuses a weight update: {done.message}")
