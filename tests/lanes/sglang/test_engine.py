"""The checks of ``tests.lanes.shared.engine`` on real SGLang engines."""

from pathlib import Path

import pytest
from tests.lanes.sglang.apart import apart
from tests.lanes.shared import checkpoints
from tests.lanes.shared.engine import pretrained

_REFITS = "tests.lanes.sglang.checks:refits"


def test_refits_on_two_ranks_with_and_without_a_flush_and_after_a_failure(tmp_path: Path) -> None:
    apart("tests.lanes.sglang.checks:everything", checkpoints.make(tmp_path, "llama"), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "qwen3moe"])
def test_ten_refits_on_two_ranks(family: str, tmp_path: Path) -> None:
    apart(_REFITS, checkpoints.make(tmp_path, family), tmp_path, "2", "10", timeout_s=1200)


@pytest.mark.slow
@pytest.mark.parametrize("tp", ["1", "3"])
def test_ten_refits_of_a_pretrained_model(tp: str, tmp_path: Path) -> None:
    apart(_REFITS, pretrained(), tmp_path, tp, "10", "0.02", timeout_s=1800)


@pytest.mark.slow
def test_a_flipped_bit_of_one_worker_is_found_named_and_repaired(tmp_path: Path) -> None:
    apart("tests.lanes.sglang.checks:audit", checkpoints.make(tmp_path, "llama"), tmp_path)


@pytest.mark.slow
def test_a_request_that_waits_for_its_grammar_holds_up_no_flush() -> None:
    apart("tests.lanes.sglang.checks:grammars", pretrained(), "2")
