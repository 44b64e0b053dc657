"""An SGLang engine: this process is its front; its workers, which hold the model, are children of it.

When a worker dies, SGLang kills the front too; the driver then starts both anew.
"""

import json
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from dcr import observe
from dcr.errors import ConfigError
from dcr.receiver.gate import ServingGate
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr_recipes.launch.group import watch_group
from dcr_recipes.processes.border import Context
from dcr_recipes.processes.engine_setup import model_folder, require_known
from dcr_recipes.processes.host import Host
from dcr_recipes.processes.worker_ranks import receiver_of
from dcr_recipes.runtime import rank_faults
from dcr_recipes.runtime.ranks import DUMP, RanksStorage
from dcr_recipes.runtime.sglang import SglangEngine
from dcr_recipes.runtime.sglang_arguments import CONTEXT, LOADER, engine_arguments
from dcr_recipes.runtime.silent import SilentEngine
from dcr_recipes.runtime.worker import RuntimeWorker

if TYPE_CHECKING:
    from dcr_adapters.sglang.control import AsyncEngineControl


def build(context: Context) -> Host:
    """See ``dcr_recipes.processes.host.build``.

    Raises:
        ConfigError: SGLang is not installed here, or refuses the model or an argument.
    """
    serving, control, workers = _built(context)
    gate = ServingGate(EngineGate(control))
    return Host(
        serving,
        _storage(workers),
        gate,
        receiver_of(context, workers, gate),
        context.config.transport.poll_s,
    )


def build_silent(context: Context) -> RuntimeWorker:
    """The same engine, which answers nothing.

    Raises:
        ConfigError: as ``build``.
    """
    _, _, workers = _built(context)
    return RuntimeWorker(context.name, SilentEngine(), storage=_storage(workers), gate=ServingGate())


def _storage(workers: Workers) -> RanksStorage:
    return RanksStorage(workers, partial(workers.tell, DUMP))


def _built(context: Context) -> tuple[SglangEngine, "AsyncEngineControl", Workers]:
    watch_group()
    with observe.stage("process.build"):
        engine = _started(context)
    from dcr_adapters.sglang.control import AsyncEngineControl

    serving = SglangEngine(engine)
    control = AsyncEngineControl(engine, engine.loop, folder=context.folder.exchange, loader=LOADER)
    return serving, control, Workers(control, folder=context.folder.exchange)


def _started(context: Context) -> Any:
    try:
        import sglang
        from sglang.srt.server_args import ServerArgs
    except ImportError as err:
        raise ConfigError(
            f"runtime=sglang: SGLang cannot be imported here ({err}); install it with: make setup-sglang"
        ) from err
    config = context.config
    arguments = engine_arguments(model_folder(context), config.runtime, config.recipe)
    require_known("SGLang", arguments, ServerArgs.__struct_fields__)
    told = rank_faults.told_of(context.folder, context.name, context.incarnation)
    os.environ[CONTEXT] = json.dumps(told)  # workers inherit it
    try:
        return sglang.Engine(**arguments)
    except (ValueError, TypeError, AssertionError) as err:
        raise ConfigError(f"runtime=sglang: SGLang refuses this configuration: {err}") from err
