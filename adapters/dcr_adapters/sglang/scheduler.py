"""What the plug-in does in the scheduler of an engine that takes deltas (DESIGN R19).

Each function is a hook of SGLang's; whatever rank it runs in, the others do the same at the same time.
"""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from dcr_adapters.sglang.messages import SESSION
from dcr_adapters.sglang.plugin import takes_calls

_log = logging.getLogger(__name__)
_CALLED: ContextVar[bool] = ContextVar("_CALLED", default=False)
"""Whether the step of an update session that is under way belongs to a call of DCR's."""

_ROUNDS = 20
"""Of waiting for grammars in one flush, 5 ms each; the front asks again."""


def queue_grammars(scheduler: Any, *_: Any, **__: Any) -> None:
    """Before a flush: requests whose grammar is ready join the queue that a paused engine may keep.

    SGLang flushes nothing while a request waits for its grammar, and looks at those only when it plans a
    batch, which it does not in a pause. They have no keys and values yet. Ranks agree on each round.
    """
    if not (scheduler._engine_paused and takes_calls()):
        return
    grammars = scheduler.grammar_manager
    for _round in range(_ROUNDS):
        if not grammars.has_waiting_grammars():
            return
        for request in grammars.get_ready_grammar_requests():
            scheduler._add_request_to_queue(request)


def refuse_storage(attach: Callable[..., Any], scheduler: Any, asked: Any) -> Any:
    """Around SGLang's attaching of storage to a hierarchical cache; ``settings`` refuse it at the start."""
    if not takes_calls():
        return attach(scheduler, asked)
    from sglang.srt.managers.io_struct import AttachHiCacheStorageReqOutput

    return AttachHiCacheStorageReqOutput(
        success=False,
        message="DCR: this engine takes deltas, and the storage would keep keys and values of old weights, "
        "by tokens alone; use host memory alone, or start SGLang without DCR's --custom-weight-loader",
    )


def know_calls(step: Callable[..., Any], updater: Any, asked: Any) -> Any:
    """Around the beginning and end of each update session: whether it is one of DCR's."""
    called = _CALLED.set(asked.rid == SESSION)
    try:
        return step(updater, asked)
    finally:
        _CALLED.reset(called)


def spare_refused(process: Callable[..., None], updater: Any, **options: Any) -> None:
    """Around what a session does to all weights of a model, at its beginning and at its end.

    SGLang packs, transposes or derives weights anew there. Of an engine that workers refuse, none are
    touched by calls, the one that tells of the refusal included; other sessions are as they were.
    """
    if not (_CALLED.get() and _is_refused(updater.get_model())):
        process(updater, **options)


def _is_refused(model: Any) -> bool:
    from dcr_adapters.sglang.refusals import refusals, this_engine

    try:
        return bool(refusals(model, this_engine()))
    except Exception:  # noqa: BLE001 -- the border: raised, it would end SGLang's scheduler
        _log.exception("nothing is known of how weights are kept: they are left as they are")
        return True
