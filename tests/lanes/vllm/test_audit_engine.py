"""The check of ``tests.lanes.shared.audit`` on a real vLLM engine."""

import asyncio
from pathlib import Path

import pytest
from tests.lanes.shared import checkpoints
from tests.lanes.shared.audit import check_audit
from tests.lanes.vllm.engines import served
from tests.lanes.vllm.flipping import EXTENSION


@pytest.mark.slow
def test_a_flipped_bit_of_one_worker_is_found_named_and_repaired(tmp_path: Path) -> None:
    old = checkpoints.make(tmp_path, "llama")
    with served(old, 2, extension=EXTENSION) as engine:

        def flip(rank: int, resident: str, element: int) -> None:
            call = engine.engine.collective_rpc("flip_bit", args=(rank, resident, element))
            asyncio.run_coroutine_threadsafe(call, engine.loop).result(60)

        check_audit(engine, old, tmp_path, flip)
