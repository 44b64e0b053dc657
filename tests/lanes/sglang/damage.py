"""A worker that fails, or whose memory is damaged, on demand: a custom weight loader of the tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from dcr import observe
from dcr.observe import Event
from dcr.receiver.workers.rank_server import Further
from dcr_adapters.sglang.loader import SglangLoader
from dcr_adapters.sglang.worker import answer_control, server_of

LOADER = f"{__name__}.call"


@dataclass(frozen=True, slots=True)
class Flip:
    """Parameters of ``flip``: the lowest bit of ``element`` of the 2-byte tensor ``resident``."""

    resident: str
    element: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Parameters of ``fail``: in the midst of the next payload."""

    message: str


def call(model: nn.Module, named_tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
    """What DCR's own loader does, and the calls ``flip`` and ``fail``."""
    answer_control(named_tensors, lambda: server_of(model, _further))


def _further(loader: SglangLoader, _: int) -> Further:
    return {"flip": (Flip, partial(_flip, loader)), "fail": (Fail, _fail)}


def _flip(loader: SglangLoader, asked: Flip) -> None:
    loader.resident()[asked.resident].data.view(torch.int16).reshape(-1)[asked.element] ^= 1


def _fail(asked: Fail) -> None:
    def listen(event: Event) -> None:
        if event.name == "receiver.item.copy":
            listening.close()
            raise RuntimeError(asked.message)

    listening = _Listening(listen)


class _Listening:
    """Listens until it is closed."""

    def __init__(self, listener: observe.Listener) -> None:
        self._context = observe.listening(listener)
        self._context.__enter__()

    def close(self) -> None:
        """No longer."""
        self._context.__exit__(None, None, None)
