"""What the plug-in's hooks do in SGLang's own scheduler classes, without an engine."""

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.managers.io_struct import AttachHiCacheStorageReqInput
from sglang.srt.managers.scheduler import Scheduler
from tests.lanes.sglang.hooked import hooks  # noqa: F401 -- a fixture, for all tests here

from dcr_adapters.sglang import scheduler


class Paused:
    """As a paused ``Scheduler``, as far as a flush looks at one; ``flush`` and its question are SGLang's."""

    is_fully_idle = Scheduler.is_fully_idle

    def __init__(self, *grammars: "Future[Any]", paused: bool = True) -> None:
        self._engine_paused = paused
        self.waiting_queue: list[Any] = []
        self.running_batch = SimpleNamespace(is_empty=lambda: True, reqs=[])
        self.chunked_req = self.last_batch = self.draft_worker = self.decode_offload_manager = None
        self.dllm_manager = SimpleNamespace(any_staging_reqs=lambda: False)
        self.enable_overlap = self.enable_hisparse = False
        self.enable_hierarchical_cache = self.enable_lmcache = self.enable_flexkv = False
        self.disaggregation_mode = None
        self.grammar_manager = _grammars(grammars)
        parts = ("tree_cache", "req_to_token_pool", "token_to_kv_pool_allocator", "metrics_reporter")
        self.__dict__.update(dict.fromkeys(parts, _Anything()))

    def _pp_microbatches_drained(self) -> bool:
        return True

    def _add_request_to_queue(self, request: Any) -> None:
        self.waiting_queue.append(request)

    def flush(self) -> bool:
        return bool(Scheduler.flush_cache(self, empty_cache=False))


class _Anything:
    is_stats_logging_rank = False

    def __getattr__(self, name: str) -> Any:
        return lambda: None


def _grammars(compiling: "tuple[Future[Any], ...]") -> Any:
    """SGLang's manager with one request for each grammar."""
    made = GrammarManager.__new__(GrammarManager)
    made.grammar_backend = SimpleNamespace(set_cache=lambda *_: None, reset=lambda: None)
    made.pp_rank, made.pp_size, made.pp_group, made.grammar_sync_size = 0, 1, None, 1
    made.SGLANG_GRAMMAR_POLL_INTERVAL, made.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = 0.005, 10000
    made.grammar_queue = [_Request(grammar) for grammar in compiling]
    return made


class _Request:
    """Still waits for its grammar."""

    def __init__(self, grammar: "Future[Any]") -> None:
        self.grammar = grammar
        self.grammar_key = ("regex", "a+")
        self.grammar_wait_ct = 0
        self.kv = SimpleNamespace(holds_kv=False)

    def finished(self) -> bool:
        return False


class _Grammar:
    def copy(self) -> "_Grammar":
        return self


def test_requests_that_wait_for_a_grammar_hold_up_no_flush() -> None:
    """SGLang never looks at them in a pause, and flushed nothing while there were any."""
    ready, soon, grammar = Future[Any](), Future[Any](), _Grammar()
    ready.set_result(grammar)
    engine = Paused(ready, soon)
    threading.Timer(0.02, soon.set_result, [grammar]).start()
    assert engine.flush()
    assert [request.grammar for request in engine.waiting_queue] == [grammar, grammar]
    assert not engine.grammar_manager.has_waiting_grammars()


def test_a_grammar_that_takes_long_is_waited_for_anew() -> None:
    late = Future[Any]()
    engine = Paused(late)
    assert not engine.flush()
    late.set_result(_Grammar())
    assert engine.flush()


def test_an_engine_that_goes_on_looks_for_grammars_itself() -> None:
    ready = Future[Any]()
    ready.set_result(_Grammar())
    engine = Paused(ready, paused=False)
    assert not engine.flush()
    assert engine.waiting_queue == []


@pytest.mark.parametrize("taking", [True, False])
def test_storage_is_not_attached_to_an_engine_that_takes_deltas(
    taking: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "takes_calls", lambda: taking)
    serving = SimpleNamespace(served_model_name="model")
    monkeypatch.setattr("sglang.srt.managers.scheduler.get_serving", lambda: serving)
    asked = AttachHiCacheStorageReqInput(hicache_storage_backend="file")
    engine = Attachable()
    done = Scheduler.attach_hicache_storage_wrapped(engine, asked)
    assert not done.success
    assert ("keys and values of old weights" in done.message) == taking
    assert engine.tree_cache.asked == ([] if taking else ["file"])


class Attachable:
    """As an idle ``Scheduler`` with a hierarchical cache, whose storage cannot be reached."""

    enable_hierarchical_cache = True

    def __init__(self) -> None:
        self.tree_cache = _Tree()

    def is_fully_idle(self) -> bool:
        return True


class _Tree:
    def __init__(self) -> None:
        self.asked: list[str] = []

    def attach_storage_backend(self, storage_backend: str, **_: Any) -> tuple[bool, str]:
        self.asked.append(storage_backend)
        return False, "not there"
