"""The Megatron lane: has its own environment (``make lane-megatron``), skipped where Megatron is missing."""

import importlib.util
import os

from tests.lanes.lenient import pytest_configure, pytest_unconfigure  # noqa: F401 -- hooks of this lane

os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
collect_ignore_glob = [] if importlib.util.find_spec("megatron") else ["*"]
