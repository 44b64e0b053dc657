"""What the plug-in does in the scheduler of an engine that takes deltas (DESIGN R19).

Each function is a hook of SGLang's; whatever rank it runs in, the others do the same at the same time.
"""

from typing import Any

from dcr_adapters.sglang.plugin import takes_calls

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
