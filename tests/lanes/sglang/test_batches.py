"""Groups of requests to an SGLang engine, without an engine: one that fails leaves nothing running."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.io_struct import ContinueGenerationReqInput

from dcr.errors import ConfigError, Unreachable
from dcr_recipes.runtime import sglang
from dcr_recipes.runtime.sglang import SglangEngine


class Engine:
    """An ``Engine`` and its tokenizer manager: takes ``accepts`` requests, of which ``sends`` leave."""

    def __init__(self, *, accepts: int, sends: int) -> None:
        self.accepts = accepts
        self.sends = sends
        self.loop = asyncio.new_event_loop()
        self.tokenizer_manager = self
        self.rid_to_state: dict[str, Any] = {}
        self.going: set[str] = set()
        self.told: list[object] = []

    def auto_create_handle_loop(self) -> None: ...

    async def _async_dispatch_to_scheduler(self, asked: object) -> None:
        self.told.append(asked)

    async def async_generate(self, *, rid: str, **_: Any) -> dict[str, Any]:
        if len(self.rid_to_state) == self.accepts:
            raise ValueError("the prompt is too long")
        self.rid_to_state[rid] = SimpleNamespace(dispatched=len(self.rid_to_state) < self.sends)
        self.going.add(rid)
        await asyncio.sleep(3600)
        raise AssertionError

    def abort_request(self, rid: str) -> None:
        self.going.discard(rid)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "_WAY_S", 0.2)


@pytest.mark.parametrize(
    ("accepts", "sends", "error", "words"),
    [(4, 2, Unreachable, "did not leave"), (2, 4, ConfigError, "too long")],
)
def test_a_group_that_fails_leaves_nothing_running(
    accepts: int, sends: int, error: type[Exception], words: str
) -> None:
    engine = Engine(accepts=accepts, sends=sends)
    with pytest.raises(error, match=words):
        SglangEngine(engine).generate([1, 2], [1, 2, 3], max_new_tokens=4, temperature=1.0)
    assert not engine.going
    assert isinstance(engine.told[-1], ContinueGenerationReqInput), "the scheduler is let go"
    engine.loop.call_soon_threadsafe(engine.loop.stop)
    while engine.loop.is_running():
        time.sleep(0.01)
    engine.loop.close()
