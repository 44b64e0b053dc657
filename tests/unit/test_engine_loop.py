"""Calls of an engine in this process that end late: in their order, and each with its own answer."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from tests.loops import running_loop

from dcr.errors import IntegrityError, Unreachable
from dcr.receiver.workers.loop import EngineLoop


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    with running_loop() as made:
        yield made


class Engine:
    """One that works in order, and takes an answer for that of whoever waits: it does not say of what."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.free = asyncio.Event()
        self._turn = asyncio.Lock()
        self._waiting: asyncio.Future[str] | None = None
        self._worker: asyncio.Task[None] | None = None
        self._asked: asyncio.Queue[str] = asyncio.Queue()

    async def ask(self, what: str) -> str:
        async with self._turn:
            self._asked.put_nowait(what)
            if self._worker is None:
                self._worker = asyncio.ensure_future(self._work())
            self._waiting = asyncio.get_running_loop().create_future()
            return await self._waiting

    async def free_it(self) -> None:
        self.free.set()

    async def _work(self) -> None:
        while True:
            what = await self._asked.get()
            await self.free.wait()
            self.done.append(what)
            if self._waiting is not None and not self._waiting.done():
                self._waiting.set_result(what)


def test_a_late_call_ends_before_the_next_begins_and_keeps_its_answer(
    loop: asyncio.AbstractEventLoop,
) -> None:
    engine = Engine()
    line = EngineLoop(loop, deadline_s=0.2)
    with pytest.raises(Unreachable, match=r"did not answer in 0\.2 s"):
        line.wait(engine.ask("first"))
    with pytest.raises(Unreachable, match="has not ended what it was asked before"):
        line.wait(engine.ask("second"))
    assert engine.done == []
    asyncio.run_coroutine_threadsafe(engine.free_it(), loop).result(10)
    assert line.wait(engine.ask("third")) == "third"
    assert engine.done == ["first", "third"], "what was not begun is never done"


def test_what_an_engine_raises_is_unreachable_and_holds_nothing_up(loop: asyncio.AbstractEventLoop) -> None:
    line = EngineLoop(loop, deadline_s=10)

    async def fail(err: Exception) -> None:
        raise err

    for err in (OSError("broken pipe"), TimeoutError("its own")):
        with pytest.raises(Unreachable, match=f"{type(err).__name__}: {err}"):
            line.wait(fail(err))
    with pytest.raises(IntegrityError, match="as it is"):
        line.wait(fail(IntegrityError("as it is")))
    start = time.monotonic()
    assert line.wait(asyncio.sleep(0, "answer")) == "answer"
    assert time.monotonic() - start < 5
