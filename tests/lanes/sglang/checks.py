"""What is checked of engines, each in a process of its own (``apart``)."""

import asyncio
import re
import time
from functools import partial
from pathlib import Path

import pytest
from tests.lanes.sglang import damage
from tests.lanes.sglang.damage import Fail, Flip
from tests.lanes.sglang.engines import SglangServed, served
from tests.lanes.shared.audit import check_audit
from tests.lanes.shared.engine import LEAST_CACHED, LONG_PROMPT, PROMPTS, Further, check_engine, following
from tests.lanes.shared.run import Run

from dcr.errors import AttemptFailed
from dcr.model import ReceiverState
from dcr.receiver.agent import ReceiverAgent


def refits(old: str, folder: str, tp: str, num_refits: str, rate: str = "0.2") -> None:
    """See ``check_engine``; SGLang's own checksums count as evidence."""
    further = Further(evidence=SglangServed.checksums)
    check_engine(
        served, Path(old), Path(folder), tp=int(tp), num_refits=int(num_refits), rate=float(rate),
        further=further,
    )  # fmt: skip


def everything(old: str, folder: str) -> None:
    """Two refits on two ranks; before them one without the flush, and one that fails on a rank."""

    def between(engine: SglangServed, run: Run, receiver: ReceiverAgent) -> None:
        _refit_without_flush(engine, run, receiver)
        _fail_and_retry(engine, run, receiver, Path(folder))

    check_engine(
        partial(served, loader=damage.LOADER), Path(old), Path(folder), tp=2, num_refits=2,
        further=Further(between, SglangServed.checksums),
    )  # fmt: skip


def audit(old: str, folder: str) -> None:
    """See ``check_audit``."""
    with served(Path(old), 2, damage.LOADER) as engine:
        workers = engine.workers(Path(folder))

        def flip(rank: int, resident: str, element: int) -> None:
            workers.ask(rank, "flip", Flip(resident, element), type(None))

        check_audit(engine, Path(old), Path(folder), flip)


def grammars(old: str, tp: str) -> None:
    """A request whose grammar is still being compiled in a pause holds up no flush, and is answered."""
    with served(Path(old), int(tp), speaks=True) as engine:
        slow = "([a-z ]{1,400}[0-9]?){1,40}"  # more than a second
        params = {"temperature": 0, "max_new_tokens": 8, "regex": slow}
        asked = engine.engine.async_generate(prompt="Say ab", sampling_params=params)
        waiting = asyncio.run_coroutine_threadsafe(asked, engine.loop)
        while not engine.engine.tokenizer_manager.rid_to_state:
            time.sleep(0.01)
        time.sleep(0.1)
        engine.control.pause()
        engine.control.reset_caches()
        assert not waiting.done()
        engine.control.resume()
        assert re.fullmatch("[a-z 0-9]+", waiting.result(120)["text"])


def _refit_without_flush(engine: SglangServed, run: Run, receiver: ReceiverAgent) -> None:
    """The check for stale entries can fail: without the flush it finds the old version's."""
    before = engine.ask(LONG_PROMPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(engine.control), "reset_caches", lambda _: None)
        run.refit(receiver, following(run, 0.2, 50), receiver.report().classification)
    stale = engine.ask(LONG_PROMPT)
    assert stale.num_cached >= LEAST_CACHED
    engine.control.pause()
    engine.control.reset_caches()
    engine.control.resume()
    clean = engine.ask(LONG_PROMPT)
    assert clean.num_cached == 0
    assert stale.tokens != clean.tokens != before.tokens


def _fail_and_retry(engine: SglangServed, run: Run, receiver: ReceiverAgent, folder: Path) -> None:
    """One rank fails in the midst of an item: the engine lives on, and overwrites repair it."""
    newest = following(run, 0.2, 51)
    before = [engine.ask(prompt).tokens for prompt in PROMPTS]
    engine.workers(folder).ask(1, "fail", Fail("injected"), type(None))
    with pytest.raises(AttemptFailed, match="injected"):
        run.refit(receiver, newest, receiver.report().classification)
    assert receiver.report().state is ReceiverState.MIXED
    assert not engine.gate.is_open
    waiting = engine.begin(PROMPTS[0], 12)
    run.refit(receiver, newest)
    assert waiting.result(300).tokens == engine.ask(PROMPTS[0]).tokens
    assert [engine.ask(prompt).tokens for prompt in PROMPTS] != before
