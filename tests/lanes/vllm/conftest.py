"""The vLLM lane: runs in its own environment (``make lane-vllm``), is skipped where vLLM is not installed."""

import importlib.util
import os

from tests.lanes.lenient import pytest_configure, pytest_unconfigure  # noqa: F401 -- hooks of this lane

os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_LOGGING_LEVEL=os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
    OMP_NUM_THREADS="1",
)
collect_ignore_glob = [] if importlib.util.find_spec("vllm") else ["*"]
