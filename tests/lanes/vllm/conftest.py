"""The vLLM lane: runs in its own environment (``make lane-vllm``), is skipped where vLLM is not installed."""

import importlib.util
import os

import pytest

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    OMP_NUM_THREADS="1",
)
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["*"]


def pytest_configure(config: pytest.Config) -> None:
    """Warnings of vLLM and its dependencies are not this project's to fix."""
    config.addinivalue_line("filterwarnings", "default")
