"""Offline ``LLM`` objects, each in a forked process that has vLLM imported already."""

import json
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.lanes.shared.engine import PROMPTS

_ANSWER_S = 400


def in_fork(body: Callable[[], Any]) -> Any:
    """What ``body`` returns in a process of its own, as JSON; raises AssertionError if it failed."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=_run, args=(body, theirs))
    process.start()
    theirs.close()
    assert ours.poll(_ANSWER_S), "no answer"
    ok, value = json.loads(ours.recv_bytes())
    process.join(30)
    assert ok, value
    return value


def _run(body: Callable[[], Any], pipe: Connection) -> None:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "0"
    try:
        answer = json.dumps([True, body()])
    except BaseException:  # noqa: BLE001 -- the test's process reports it
        answer = json.dumps([False, traceback.format_exc()])
    pipe.send_bytes(answer.encode())
    os._exit(0)


def offline(model: Path, **options: Any) -> Any:
    """An ``LLM`` on one rank that takes deltas: by the worker extension, unless ``options`` say how."""
    from vllm import LLM

    from dcr_adapters.vllm.plugin import EXTENSION

    # vLLM looks for its kernels in every module, and llvmlite's handle answers to any attribute.
    hidden = {
        name: sys.modules.pop(name) for name in list(sys.modules) if name.startswith("llvmlite.binding")
    }
    try:
        return _started(LLM, model, options or {"worker_extension_cls": EXTENSION})
    finally:
        sys.modules.update(hidden)


def _started(kind: Any, model: Path, options: dict[str, Any]) -> Any:
    return kind(
        model=str(model),
        dtype="bfloat16",
        max_model_len=1024,
        max_num_seqs=4,
        enforce_eager=True,
        kv_cache_memory_bytes=32 << 20,
        skip_tokenizer_init=True,
        **options,
    )


def say(llm: Any) -> list[list[int]]:
    """Greedy answers to the lane's prompts, one request at a time."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, detokenize=False)
    asked = [{"prompt_token_ids": list(prompt)} for prompt in PROMPTS]
    return [list(llm.generate([one], params, use_tqdm=False)[0].outputs[0].token_ids) for one in asked]
