"""The checks of ``tests.lanes.shared.engine`` on real vLLM engines."""

from pathlib import Path

import pytest
from tests.lanes.shared import checkpoints
from tests.lanes.shared.engine import check_engine, pretrained
from tests.lanes.vllm.engines import served


def test_llama_on_two_ranks(tmp_path: Path) -> None:
    check_engine(served, checkpoints.make(tmp_path, "llama"), tmp_path, tp=2, num_refits=2)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_ten_refits_on_two_ranks(family: str, tmp_path: Path) -> None:
    check_engine(served, checkpoints.make(tmp_path, family), tmp_path, tp=2, num_refits=10)


@pytest.mark.slow
@pytest.mark.parametrize("tp", [1, 3])
def test_ten_refits_of_a_pretrained_model(tp: int, tmp_path: Path) -> None:
    check_engine(served, pretrained(), tmp_path, tp=tp, num_refits=10, rate=0.02)
