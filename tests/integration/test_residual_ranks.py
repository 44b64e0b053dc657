"""Residual conversion between real ranks: torch.distributed carries the parts, trackers hold them (R5)."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.quantized import quantize
from tests.integration.residual_ranks import WORLD
from tests.lanes.shared.trainer_world import require_success

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("residual")
    command = [sys.executable, "-m", "tests.integration.residual_ranks", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    require_success(made)
    return made


def told(folder: Path, name: str) -> list[Any]:
    """What each rank was told of a step."""
    return [json.loads((folder / f"told-{rank}.json").read_text())[name] for rank in range(WORLD)]


def arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return dict(data)


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_every_version_is_a_full_conversion_of_its_weights(folder: Path, version: int) -> None:
    raw = [arrays(folder / f"raw-{version}-{rank}.npz") for rank in range(WORLD)]
    rows = np.concatenate([each["rows"] for each in raw])
    scale = np.abs(rows).max()
    border = np.append([each["border"][0] for each in raw], raw[-1]["border"][1]).astype(np.float32)
    found = arrays(folder / f"version-{version}.npz")
    np.testing.assert_array_equal(found["weight.quantized"].view(np.int8), quantize(rows, scale).reshape(-1))
    np.testing.assert_array_equal(found["weight.scale"].view(np.float32), [scale])
    np.testing.assert_array_equal(found["border"].view(np.float32), border)


def test_a_shared_scale_changes_outputs_of_unchanged_inputs(folder: Path) -> None:
    """One input element of 18 changed; the scale, and every value but those that stay the same, did too."""
    assert told(folder, "scale") == [[1, 1 + 18]] * WORLD
    assert told(folder, "nothing") == [[2, 0]] * WORLD


def test_parts_that_disagree_fail_the_attempt_on_every_rank_by_name(folder: Path) -> None:
    for message in told(folder, "disagree"):
        assert message.startswith("AttemptFailed: residual tensor 'border': rank 1 and earlier parts differ")
        assert "at 1..1" in message
    assert told(folder, "agree") == [[3, 3]] * WORLD


def test_inputs_that_cannot_be_digested_fail_the_attempt_on_every_rank(folder: Path) -> None:
    assert told(folder, "undigested") == ["AttemptFailed: MemoryError: host copy (found on rank 1)"] * WORLD


def test_elements_that_nobody_gives_fail_the_attempt_on_every_rank(folder: Path) -> None:
    for message in told(folder, "missing"):
        assert message.startswith(
            "AttemptFailed: residual tensor 'weight.quantized': no rank gave elements 12..17"
        )
    assert [version for version, _ in told(folder, "complete")] == [4] * WORLD


def test_a_restarted_trainer_proves_its_residual_baseline_or_rebuilds_it(folder: Path) -> None:
    assert told(folder, "replayed at 4") == [0, 0, 0]
    first, second, third = told(folder, "replayed at 5")
    assert (first, third) == (0, 0)
    assert second > 0
    assert [version for version, _ in told(folder, "after damage")] == [6] * WORLD
