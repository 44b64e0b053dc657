"""What a run adds to each SGLang worker process: raw dumps and injected faults.

``run_call`` is the engine's custom weight loader; SGLang imports it in each worker at the first call.
"""

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn

from dcr import observe
from dcr.model import from_json
from dcr.receiver.workers.messages import Apply, Call
from dcr.receiver.workers.rank_server import Further, RankServer
from dcr_adapters.sglang.loader import SglangLoader
from dcr_adapters.sglang.worker import answer_control, server_of
from dcr_recipes.runtime import rank_faults
from dcr_recipes.runtime.dump import rank_file, sampled, write_dump
from dcr_recipes.runtime.ranks import DUMP, Dump
from dcr_recipes.runtime.sglang_arguments import CONTEXT


def run_call(model: nn.Module, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """See ``dcr_adapters.sglang.worker.dcr_call``; ``rank.apply`` names the attempt for injected faults."""
    answer_control(named_tensors, lambda: _serving(model), before=_tell)


def _serving(model: nn.Module) -> RankServer:
    server = server_of(model, _further)
    _listening(server.rank)
    return server


def _further(loader: SglangLoader, rank: int) -> Further:
    return {DUMP: (Dump, partial(_dump, loader, rank))}


def _dump(loader: SglangLoader, rank: int, asked: Dump) -> int:
    """Write this rank's parameters and buffers to ``<path>.rank-<rank>``; returns their bytes."""
    return write_dump(
        rank_file(Path(asked.path), rank), sampled(loader.resident(), asked.share, asked.sample)
    )


@cache
def _listening(rank: int) -> ExitStack:
    """Faults of the run, from the first call on."""
    stack, told = ExitStack(), os.environ.get(CONTEXT)
    rank_faults.listen(stack, json.loads(told) if told else None, rank)
    return stack


def _tell(call: Call) -> None:
    if call.method == "apply":
        observe.point("rank.apply", attempt=str(from_json(Apply, call.params).attempt))
