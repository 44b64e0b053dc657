"""The Megatron lane: has its own environment (``make lane-megatron``), skipped where Megatron is missing."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.lanes.lenient import pytest_configure, pytest_unconfigure  # noqa: F401 -- hooks of this lane

os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
_ROOT = Path(__file__).parents[3]
collect_ignore_glob = [] if importlib.util.find_spec("megatron") else ["*"]


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every rank of every world of this lane has written, by the layout's name."""
    folder = tmp_path_factory.mktemp("megatron")
    command = [sys.executable, "-m", "tests.lanes.megatron.worlds", str(folder)]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


@pytest.fixture
def folder(worlds: Path, name: str) -> Path:
    """The same of one layout; ``name`` is the test module's."""
    from tests.lanes.shared.trainer_world import require_success  # torch, after the environment is set

    require_success(worlds / name)
    return worlds / name
