"""Steering a vLLM engine of this process, without vLLM: what fails is Unreachable, and no old KV stays."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from dcr.errors import ConfigError, Unreachable
from dcr.receiver.workers.gate import OfflineGate
from dcr_adapters.vllm.control import AsyncEngineControl, OfflineControl


class Engine:
    """As much of an ``LLM`` as is asked; ``resets``: what resetting the prefix cache returns."""

    def __init__(self, resets: object = True, *, dead: bool = False, replicas: int = 1) -> None:
        self.resets = resets
        self.dead = dead
        self.asked: list[tuple[str, Any]] = []
        self.vllm_config = SimpleNamespace(parallel_config=SimpleNamespace(data_parallel_size=replicas))
        self.llm_engine = self

    def reset_prefix_cache(self, **options: bool) -> object:
        self._note("prefix", options)
        return self.resets

    def reset_encoder_cache(self) -> None:
        self._note("encoder", None)

    def set_weight_version(self, version: str) -> None:
        self._note("version", version)

    def _note(self, what: str, told: object) -> None:
        if self.dead:
            raise OSError("broken pipe")
        self.asked.append((what, told))


class Later:
    """The same as an ``AsyncLLM``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.vllm_config = engine.vllm_config

    async def reset_prefix_cache(self, **options: bool) -> object:
        return self._engine.reset_prefix_cache(**options)

    async def reset_encoder_cache(self) -> None:
        self._engine.reset_encoder_cache()

    async def update_weight_version(self, version: str) -> None:
        self._engine.set_weight_version(version)


@contextmanager
def control_of(kind: str, engine: Engine) -> Iterator[AsyncEngineControl | OfflineControl]:
    if kind == "offline":
        yield OfflineControl(engine)
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield AsyncEngineControl(Later(engine), loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


KINDS = pytest.mark.parametrize("kind", ["offline", "async"])


@KINDS
@pytest.mark.parametrize("resets", [True, None])
def test_all_caches_are_reset_the_connector_too(kind: str, resets: object) -> None:
    engine = Engine(resets)
    with control_of(kind, engine) as control:
        control.reset_caches()
        control.set_version("7")
    options = {"reset_running_requests": True, "reset_connector": True}
    assert engine.asked == [("prefix", options), ("encoder", None), ("version", "7")]


@KINDS
def test_a_cache_that_was_not_reset_is_no_success(kind: str) -> None:
    with (
        control_of(kind, Engine(resets=False)) as control,
        pytest.raises(Unreachable, match="no request may see old KV"),
    ):
        control.reset_caches()


@KINDS
def test_several_replicas_are_no_engine(kind: str) -> None:
    """vLLM answers for the first of them: what the others did is never known."""
    with (
        pytest.raises(ConfigError, match=r"data_parallel_size=2: .*an engine of its own"),
        control_of(kind, Engine(replicas=2)),
    ):
        pass


@KINDS
def test_a_dead_engine_is_unreachable(kind: str) -> None:
    with control_of(kind, Engine(dead=True)) as control:
        for call in (control.reset_caches, lambda: control.set_version("7")):
            with pytest.raises(Unreachable, match="OSError: broken pipe"):
                call()


def test_an_offline_engine_takes_one_call_at_a_time() -> None:
    """A fence and the background audit call from threads of their own, beside the one that generates."""
    control = OfflineControl(engine := Busy())
    gate = OfflineGate(control)
    gate.close()
    gate.open(0, changed=True)
    calls = [threading.Thread(target=control.call_workers, args=("{}",)) for _ in range(3)]

    with gate.generating():
        for call in calls:
            call.start()
        engine.work()
    for call in calls:
        call.join()
    assert engine.num_calls == 4
    assert engine.most_at_once == 1


class Busy(Engine):
    """Takes its time with every call, and counts how many it is asked at once."""

    def __init__(self) -> None:
        super().__init__()
        self.at_once = self.most_at_once = self.num_calls = 0
        self._lock = threading.Lock()

    def collective_rpc(self, method: str, args: tuple[str]) -> list[object]:
        self.work()
        return []

    def work(self) -> None:
        with self._lock:
            self.num_calls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
        threading.Event().wait(0.05)
        with self._lock:
            self.at_once -= 1
