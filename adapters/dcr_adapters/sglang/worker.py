"""What DCR does in each SGLang worker process: a custom weight loader (DESIGN R9, B7).

SGLang calls ``dcr_call`` with the model that it serves. Nothing is raised: an exception would end the
scheduler, and with it the engine. What goes wrong is logged, and answered where there is a place for it.
"""

import logging
import os
from collections.abc import Callable, Sequence
from weakref import WeakKeyDictionary

import torch
from torch import nn

from dcr.receiver.workers.messages import Answer, Call, Greeting
from dcr.receiver.workers.rank_server import Further, RankServer, local_rank
from dcr_adapters.sglang.loader import SglangLoader
from dcr_adapters.sglang.messages import from_tensors, write_answer

_log = logging.getLogger(__name__)
_SERVERS: WeakKeyDictionary[nn.Module, RankServer] = WeakKeyDictionary()


def dcr_call(model: nn.Module, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """Answer this rank's part of a collective call."""
    answer_control(named_tensors, lambda: server_of(model))


def answer_control(
    named_tensors: Sequence[tuple[str, torch.Tensor]],
    serve: Callable[[], RankServer],
    *,
    before: Callable[[Call], None] | None = None,
) -> None:
    """Do what the control tensor asks of ``serve()``; ``before`` is told of it first. Never raises."""
    try:
        server = serve()
        control = from_tensors(named_tensors)
        mine = control.calls.get(str(server.rank))
        if mine is not None and before is not None:
            before(mine)
        answer = Answer(server.rank, asked=False) if mine is None else server.answer(mine)
        write_answer(control.file(server.rank), answer)
    except Exception:  # noqa: BLE001 -- the border: raised, it would end SGLang's scheduler
        _log.exception("process %d could not answer", os.getpid())


def server_of(model: nn.Module, further: Callable[[SglangLoader, int], Further] | None = None) -> RankServer:
    """The calls of the rank that serves ``model``; one for as long as the model lives.

    ``further``: calls of its user's own, by the rank's loader and number.
    """
    server = _SERVERS.get(model)
    if server is None:
        from sglang.srt.runtime_context import get_parallel

        rank, world = int(get_parallel().tp_rank), int(get_parallel().tp_size)
        device = next((str(value.device) for value in model.parameters()), "cpu")
        loader = SglangLoader(model)
        own = further(loader, rank) if further is not None else None
        greeting = Greeting(rank, world, os.getpid(), device)
        server = RankServer(loader, greeting, make_rank=local_rank, further=own)
        _SERVERS[model] = server
    return server
