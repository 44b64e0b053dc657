"""What SGLang calls in each of its processes (entry point group ``sglang.srt.plugins``), before it starts.

In a worker of an engine that was started for DCR everything that the first call needs is imported before
the first request, which the import of numba alone would hold up for seconds. Any other engine is as it was.
"""

from typing import Any

_TARGET = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"


def register() -> None:
    """Prepare workers once they have loaded the model. Idempotent: SGLang calls each plug-in once."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_TARGET, _prepare, HookType.AFTER)


def _prepare(result: Any, runner: Any, *_: Any, **__: Any) -> Any:
    """After ``load_model``; what it returned is what it returns."""
    if takes_calls() and not getattr(runner, "is_draft_worker", False):
        from dcr.receiver.apply import RankApplier  # noqa: F401 -- with everything that it imports
        from dcr_adapters.sglang.worker import server_of  # noqa: F401
    return result


def takes_calls() -> bool:
    """Whether this process belongs to an engine whose custom weight loaders include one of DCR's."""
    from sglang.srt.runtime_context import get_model

    return any(path.startswith("dcr_") for path in get_model().custom_weight_loader or ())
