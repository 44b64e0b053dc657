"""The checks of ``tests.lanes.shared.recipe`` on ``dcr grpo runtime=sglang`` and ``runtime=mixed``."""

import sys
from pathlib import Path

import pytest
from tests.lanes.shared.recipe import (
    KILLS,
    Finished,
    assert_same,
    check_killed,
    check_logprobs,
    check_refits,
    finished,
)

from dcr_recipes.trace.check import check_file

STEPS = 4
_VLLM = Path(sys.prefix).parent / ".venv-vllm/bin/python"


def _run(folder: Path, *words: str) -> Finished:
    interpreter = f"runtime.interpreter={sys.executable}"
    return finished(folder, "runtime=sglang", interpreter, f"steps={STEPS}", *words)


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return _run(tmp_path_factory.mktemp("delta") / "run", "refit=dcr")


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return _run(tmp_path_factory.mktemp("dense") / "run", "refit=dense")


def test_every_refit_changes_bits_and_leaves_none_different(delta: Finished) -> None:
    check_refits(delta, STEPS)


def test_the_policys_log_probabilities_are_the_engines(delta: Finished) -> None:
    check_logprobs(delta)


def test_the_trace_of_such_a_run_is_sound(delta: Finished) -> None:
    assert check_file(delta.folder / "trace.json") == []


@pytest.mark.slow
def test_a_dense_run_of_the_same_seed_is_the_same_run(delta: Finished, dense: Finished) -> None:
    assert_same(delta, dense)


@pytest.mark.slow
@pytest.mark.parametrize("words", KILLS)
def test_killed_workers_change_nothing(tmp_path: Path, dense: Finished, words: list[str]) -> None:
    check_killed(_run(tmp_path / "run", "refit=dcr", *words), dense)


@pytest.mark.slow
def test_one_run_with_a_vllm_and_an_sglang_instance(tmp_path: Path) -> None:
    assert _VLLM.exists(), "it needs vLLM's environment, too: make setup-vllm"
    mixed = finished(tmp_path / "run", "runtime=mixed", "steps=10")
    check_refits(mixed, 10)
    check_logprobs(mixed)
