"""The steps of ``EngineControl`` on SGLang's tokenizer manager, as coroutines of its event loop (DESIGN R19).

Both ways to an engine take them: an ``Engine`` of this process (``control``), and the routes that the
plug-in adds to a server (``routes``).
"""

import asyncio
import json
from pathlib import Path
from typing import Any
from uuid import uuid4

from dcr.errors import Unreachable
from dcr.model import from_json
from dcr.receiver.workers.messages import Calls
from dcr_adapters.sglang.messages import LOADER, SESSION, Control, to_tensors
from dcr_adapters.sglang.settings import require_stored_as_read, require_takes_calls

_IDLE_S = 10.0
"""For how long what was still running when the pause came may take to end; SGLang refuses to flush before."""
_POLL_S = 0.05


class Steering:
    """One engine's steps; see ``EngineControl``. Any of them raises Unreachable if SGLang refuses.

    Weights are only written while the gate is shut, so calls do not wait for requests in flight as SGLang's
    own entry points do.
    """

    def __init__(self, manager: Any, settings: Any, folder: Path, loader: str = LOADER) -> None:
        """``settings``: SGLang's server arguments. ``folder``: of the front and workers; answers pass there.

        Raises:
            ConfigError: the engine cannot take deltas as it was started; a call would end it.
        """
        require_takes_calls(settings, loader)
        require_stored_as_read(getattr(manager, "model_config", None))
        self._manager = manager
        self._settings = settings
        self._folder = folder
        self._loader = loader
        self._line = asyncio.Lock()

    async def call_workers(self, calls: str) -> list[dict[str, Any]]:
        """One call after another: SGLang has one session for updates."""
        control = _new_control(calls, self._folder)
        async with self._line:
            try:
                await self._call(control)
                return _read_answers(control, self._num_ranks)
            finally:
                _remove_answers(control, self._num_ranks)

    async def pause(self) -> None:
        """Requests in flight go back to the queue, without their keys and values."""
        from sglang.srt.managers.io_struct import PauseGenerationReqInput

        await self._manager.pause_generation(PauseGenerationReqInput(mode="retract"))
        await self._manager.get_internal_state()  # the pause itself is not answered, but what follows it is

    async def resume(self) -> None:
        """See ``EngineControl``."""
        from sglang.srt.managers.io_struct import ContinueGenerationReqInput

        await self._manager.continue_generation(ContinueGenerationReqInput(torch_empty_cache=False))

    async def reset_caches(self) -> None:
        """See ``EngineControl``. Raises Unreachable if something is still being computed."""
        end = asyncio.get_running_loop().time() + _IDLE_S
        while not (done := await self._manager.flush_cache()).success:
            if asyncio.get_running_loop().time() >= end:
                raise Unreachable(
                    f"SGLang did not flush its cache; no request may see old KV: {done.message}"
                )
            await asyncio.sleep(_POLL_S)

    async def set_version(self, version: str) -> None:
        """See ``EngineControl``."""
        from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

        asked = UpdateWeightVersionReqInput(new_version=version, abort_all_requests=False)
        await self._manager.update_weight_version(asked)

    @property
    def _num_ranks(self) -> int:
        return int(self._settings.tp_size)

    async def _call(self, control: Control) -> None:
        from sglang.srt.managers.io_struct import UpdateWeightsFromTensorReqInput
        from sglang.srt.utils import MultiprocessingSerializer

        self._manager.auto_create_handle_loop()
        tensors = to_tensors(control)
        asked = UpdateWeightsFromTensorReqInput(
            serialized_named_tensors=[  # each names a descriptor that only one process can receive
                MultiprocessingSerializer.serialize(tensors) for _ in range(self._num_ranks)
            ],
            load_format=self._loader,
            flush_cache=False,
            selector="target",
        )
        await self._begin()
        try:
            _require((await self._manager.update_weights_from_tensor_communicator(asked))[0])
        finally:
            await self._end()

    async def _begin(self) -> None:
        """SGLang opens a session around updates, since it has sessions."""
        if hasattr(self._manager, "begin_weight_update_communicator"):
            from sglang.srt.managers.io_struct import BeginWeightUpdateReqInput

            asked = BeginWeightUpdateReqInput(rid=SESSION, selector="target")
            _require((await self._manager.begin_weight_update_communicator(asked))[0])

    async def _end(self) -> None:
        if hasattr(self._manager, "end_weight_update_communicator"):
            from sglang.srt.managers.io_struct import EndWeightUpdateReqInput

            asked = EndWeightUpdateReqInput(rid=SESSION)
            _require((await self._manager.end_weight_update_communicator(asked))[0])


def _new_control(calls: str, folder: Path) -> Control:
    """``calls`` as JSON text, with a place for answers."""
    return Control(from_json(Calls, calls), str(folder / f"dcr-answer-{uuid4().hex}"))


def _read_answers(control: Control, num_ranks: int) -> list[dict[str, Any]]:
    """Of every rank that has answered; those that could not are missed by who asked them."""
    files = [control.file(rank) for rank in range(num_ranks)]
    return [json.loads(file.read_bytes()) for file in files if file.exists()]


def _remove_answers(control: Control, num_ranks: int) -> None:
    """They have been read, or nobody will."""
    for rank in range(num_ranks):
        control.file(rank).unlink(missing_ok=True)


def _require(done: Any) -> None:
    if not done.success:
        raise Unreachable(f"SGLang refuses a weight update: {done.message}")
