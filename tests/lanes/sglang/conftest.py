"""The SGLang lane: in its own environment (``make lane-sglang``), skipped where SGLang is not installed."""

import importlib.util
import os

from tests.lanes.lenient import pytest_configure, pytest_unconfigure  # noqa: F401 -- hooks of this lane

os.environ.update(
    SGLANG_USE_CPU_ENGINE="1",
    HF_HUB_OFFLINE="1",
    OMP_NUM_THREADS="1",
)
collect_ignore = ["stubs"]  # packages of the environment, not tests
collect_ignore_glob = [] if importlib.util.find_spec("sglang") else ["*"]
