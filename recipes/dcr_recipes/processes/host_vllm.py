"""A vLLM engine: this process is its front; its workers, which hold the model, are children of it."""

import atexit
import dataclasses
import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from dcr import observe
from dcr.errors import ConfigError
from dcr.receiver.gate import ServingGate
from dcr_recipes.launch.group import watch_group
from dcr_recipes.processes.border import Context
from dcr_recipes.processes.engine_setup import model_folder, require_known
from dcr_recipes.processes.host import Host
from dcr_recipes.processes.worker_ranks import receiver_of
from dcr_recipes.runtime import rank_faults
from dcr_recipes.runtime.arguments import CONTEXT, EXTENSION, engine_arguments
from dcr_recipes.runtime.worker import RuntimeWorker

logger = logging.getLogger(__name__)
EXIT_ENGINE_DIED = 4
_WATCH_S = 0.1


def build(context: Context) -> Host:
    """See ``dcr_recipes.processes.host.build``.

    Raises:
        ConfigError: vLLM is not installed here, or refuses the model or an argument.
    """
    watch_group()
    with observe.stage("process.build"):
        engine = _started(_arguments(context))
    from dcr.receiver.workers.gate import EngineGate
    from dcr.receiver.workers.ranks import Workers
    from dcr_adapters.vllm.control import AsyncEngineControl
    from dcr_recipes.runtime.vllm import LoopThread, VllmEngine, storage_of

    thread = LoopThread()
    _end_with(engine)
    control = AsyncEngineControl(engine, thread.loop)
    workers = Workers(control, folder=context.folder.exchange)
    gate = ServingGate(EngineGate(control))
    serving = VllmEngine(engine, thread)
    return Host(
        serving,
        storage_of(workers, serving.call_workers),
        gate,
        receiver_of(context, workers, gate),
        context.config.transport.poll_s,
    )


def build_silent(context: Context) -> RuntimeWorker:
    """The same model behind the same loader, without a scheduler in a process of its own.

    Raises:
        ConfigError: as ``build``.
    """
    watch_group()
    with observe.stage("process.build"):
        arguments = _arguments(context)
        from vllm import LLM

        llm = _made(lambda: LLM(**arguments))
    from dcr.receiver.workers.ranks import Workers
    from dcr_adapters.vllm.control import OfflineControl
    from dcr_recipes.runtime.silent import SilentEngine
    from dcr_recipes.runtime.vllm import storage_of

    workers = Workers(OfflineControl(llm), folder=context.folder.exchange)
    storage = storage_of(workers, lambda method, args: llm.collective_rpc(method, args=args))
    return RuntimeWorker(context.name, SilentEngine(), storage=storage, gate=ServingGate())


def _arguments(context: Context) -> dict[str, Any]:
    try:
        import vllm  # noqa: F401 -- only whether it is there
    except ImportError as err:
        raise ConfigError(
            f"runtime=vllm: vLLM cannot be imported here ({err}); install it with: make setup-vllm"
        ) from err
    config = context.config
    told = rank_faults.told_of(context.folder, context.name, context.incarnation)
    return {
        **engine_arguments(str(model_folder(context)), config.runtime, config.recipe),
        "worker_extension_cls": EXTENSION,
        "additional_config": {CONTEXT: told},
    }


def _started(arguments: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    require_known("vLLM", arguments, (field.name for field in dataclasses.fields(AsyncEngineArgs)))
    return _made(lambda: AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments)))


def _made(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (ValueError, TypeError, AssertionError) as err:
        raise ConfigError(f"runtime=vllm: vLLM refuses this configuration: {err}") from err


def _end_with(engine: Any) -> None:
    """An engine that lost a worker does not come back: its front ends too, and both are started anew."""
    ending = threading.Event()
    atexit.register(ending.set)  # runs before the engine's own, which was registered earlier

    def watch() -> None:
        while not ending.wait(_WATCH_S):
            if engine.errored:
                logger.error("the engine died; this process ends with it")
                os._exit(EXIT_ENGINE_DIED)

    threading.Thread(target=watch, name="watch", daemon=True).start()
