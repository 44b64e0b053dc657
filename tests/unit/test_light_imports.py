"""Whoever only reads a run, or coordinates one, does not pay for torch."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "hydra", "omegaconf", "numba", "matplotlib", "safetensors")


@pytest.mark.parametrize(
    "module", ["dcr", "dcr.refit", "dcr_recipes.cli", "dcr.commit.service", "dcr.receiver.agent"]
)
def test_importing_is_light(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
