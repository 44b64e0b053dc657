"""What SGLang calls in each of its processes (entry point group ``sglang.srt.plugins``), before it starts.

In a worker of an engine that was started for DCR everything that the first call needs is imported before
the first request, which the import of numba alone would hold up for seconds. A server that was started for
DCR gets routes for the receiver (``routes``), and its schedulers what a refit needs of them (``scheduler``).
Any other engine or server is as it was.
"""

from typing import Any

_LOADED = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
_LISTENS = "sglang.srt.utils.common.set_uvicorn_logging_configs"
"""A server calls this once, right before it listens: its application is complete then, checks of keys too."""
_FLUSHES = "sglang.srt.managers.scheduler.Scheduler.flush_cache"
_ATTACHES = "sglang.srt.managers.scheduler.Scheduler.attach_hicache_storage_wrapped"
_SESSIONS = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
_MODELS = "sglang.srt.model_executor.model_runner_components.weight_updater.WeightUpdater"


def register() -> None:
    """Prepare workers and servers. Idempotent: SGLang calls each plug-in once."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from dcr_adapters.sglang.scheduler import know_calls, queue_grammars, refuse_storage, spare_refused

    HookRegistry.register(_LOADED, _prepare, HookType.AFTER)
    HookRegistry.register(_LISTENS, _extend, HookType.BEFORE)
    HookRegistry.register(_FLUSHES, queue_grammars, HookType.BEFORE)
    HookRegistry.register(_ATTACHES, refuse_storage, HookType.AROUND)
    for step in ("begin_weight_update", "end_weight_update"):
        HookRegistry.register(f"{_SESSIONS}.{step}", know_calls, HookType.AROUND)
        HookRegistry.register(f"{_MODELS}.{step}", spare_refused, HookType.AROUND)


def _prepare(result: Any, runner: Any, *_: Any, **__: Any) -> Any:
    """After ``load_model``; what it returned is what it returns."""
    if takes_calls() and not getattr(runner, "is_draft_worker", False):
        from dcr.receiver.apply import RankApplier  # noqa: F401 -- with everything that it imports
        from dcr_adapters.sglang.worker import server_of  # noqa: F401
    return result


def _extend(*_: Any, **__: Any) -> None:
    if takes_calls():
        from dcr_adapters.sglang.routes import extend_server

        extend_server()


def takes_calls() -> bool:
    """Whether this process belongs to an engine whose custom weight loaders include one of DCR's."""
    from sglang.srt.runtime_context import get_model

    return any(path.startswith("dcr_") for path in get_model().custom_weight_loader or ())
