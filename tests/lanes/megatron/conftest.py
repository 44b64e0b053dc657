"""The Megatron lane: has its own environment (``make lane-megatron``), skipped where Megatron is missing."""

import importlib.util
import os

import pytest

os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
collect_ignore_glob = [] if importlib.util.find_spec("megatron") else ["*"]


def pytest_configure(config: pytest.Config) -> None:
    """Warnings of Megatron and its dependencies are not this project's to fix."""
    config.addinivalue_line("filterwarnings", "default")
