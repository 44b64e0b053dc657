"""The recipe's Megatron learner: its step is that of transformers, and it resumes from its own state."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.lanes.megatron.one_rank"]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    loaded: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def test_loss_and_gradient_are_those_of_transformers(found: dict[str, Any]) -> None:
    (loss, norm), (their_loss, their_norm) = found["ours"], found["theirs"]
    assert loss == pytest.approx(their_loss, abs=0.05)  # a sum of 256 terms of both signs, in BF16
    assert norm == pytest.approx(their_norm, rel=0.001)


def test_masters_are_the_models_own_weights_between_the_served_values(found: dict[str, Any]) -> None:
    assert found["same"] == [True, True]


def test_a_captured_state_is_where_training_goes_on(found: dict[str, Any]) -> None:
    second, first_install, third, second_install, again = found["found"]
    assert first_install[0] == first_install[1] == second_install[0] == second_install[1]
    assert second != third
    assert again == second
