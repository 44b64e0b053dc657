"""Groups of requests to a vLLM engine, without vLLM: one that fails leaves nothing running."""

import asyncio
from typing import Any, cast

import pytest

from dcr_recipes.runtime.vllm import LoopThread, VllmEngine


class Engine:
    """As much of an ``AsyncLLM`` as is asked; refuses the request after ``accepts``."""

    def __init__(self, accepts: int) -> None:
        self.accepts = accepts
        self.running: list[str] = []
        self.paused = False

    async def pause_generation(self, **_: Any) -> None:
        self.paused = True

    async def resume_generation(self) -> None:
        self.paused = False

    async def add_request(self, name: str, prompt: object, params: object) -> "asyncio.Queue[Any]":
        if len(self.running) == self.accepts:
            raise ValueError("the prompt is too long")
        self.running.append(name)
        return asyncio.Queue()

    async def abort(self, names: list[str]) -> None:
        self.running = [name for name in self.running if name not in names]


def test_a_group_of_which_one_is_refused_leaves_nothing_running() -> None:
    engine = Engine(accepts=2)
    serving = VllmEngine(engine, cast("LoopThread", None))
    with pytest.raises(ValueError, match="too long"):
        asyncio.run(serving._batch([1, 2], [object()] * 3))
    assert engine.running == []
    assert not engine.paused
