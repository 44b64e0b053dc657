"""Steering without an engine: SGLang's own way to collect answers, over a scheduler that is held up."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import sglang.srt.managers.io_struct  # noqa: F401 -- before a call has a deadline
from sglang.srt.managers.communicator import FanOutCommunicator
from sglang.srt.utils import MultiprocessingSerializer
from tests.loops import running_loop

from dcr.errors import Unreachable
from dcr.model import to_json
from dcr.receiver.workers.messages import Answer, Call, Calls
from dcr_adapters.sglang.control import AsyncEngineControl
from dcr_adapters.sglang.messages import LOADER, from_tensors, write_answer

if TYPE_CHECKING:
    import torch


class Scheduler:
    """Opens and ends sessions and has one worker answer, in the order of arrival, while it is ``free``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.free = threading.Event()
        self.free.set()
        self.done: list[str] = []
        self._loop = loop
        self._asked: asyncio.Queue[tuple[FanOutCommunicator[Any], str, Any]] = asyncio.Queue()
        self.begin_weight_update_communicator = self._communicator("begin")
        self.end_weight_update_communicator = self._communicator("end")
        self.update_weights_from_tensor_communicator = self._communicator("update")
        asyncio.run_coroutine_threadsafe(self._work(), loop)

    def auto_create_handle_loop(self) -> None: ...

    def _communicator(self, name: str) -> "FanOutCommunicator[Any]":
        def send(asked: Any) -> None:
            self._asked.put_nowait((made, name, asked))

        made: FanOutCommunicator[Any] = FanOutCommunicator(send, 1)
        return made

    async def _work(self) -> None:
        while True:
            to, name, asked = await self._asked.get()
            await self._loop.run_in_executor(None, self.free.wait)
            if name == "update":
                self._answer(asked)
            to.handle_recv(SimpleNamespace(success=True, message=""))

    def _answer(self, asked: Any) -> None:
        tensors: list[tuple[str, torch.Tensor]] = MultiprocessingSerializer.deserialize(
            asked.serialized_named_tensors[0]
        )
        control = from_tensors(tensors)
        method = control.calls["0"].method
        self.done.append(method)
        write_answer(control.file(0), Answer(0, value=method))


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with running_loop() as made:
        yield made


def calls(method: str) -> str:
    asked: Calls = {"0": Call(method)}
    return to_json(asked).decode()


def test_a_late_call_shifts_no_answers_and_leaves_no_file(
    loop: asyncio.AbstractEventLoop, tmp_path: Path
) -> None:
    """Cancelled, its answer would be taken for that of the next call, whose worker had not begun."""
    scheduler = Scheduler(loop)
    settings = SimpleNamespace(
        custom_weight_loader=[LOADER], weight_cache_mode="off", dp_size=1, pp_size=1, tp_size=1
    )
    engine = SimpleNamespace(server_args=settings, tokenizer_manager=scheduler)
    control = AsyncEngineControl(engine, loop, folder=tmp_path, deadline_s=3.0)
    assert [answer["value"] for answer in control.call_workers(calls("hello"))] == ["hello"]
    scheduler.free.clear()
    with pytest.raises(Unreachable, match="did not answer in 3 s"):
        control.call_workers(calls("apply"))
    threading.Timer(0.2, scheduler.free.set).start()
    for method in ("begin", "audit"):
        assert [answer["value"] for answer in control.call_workers(calls(method))] == [method]
    assert scheduler.done == ["hello", "apply", "begin", "audit"]
    assert not list(tmp_path.iterdir())
