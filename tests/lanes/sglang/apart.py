"""Checks in a process of their own: SGLang kills an engine's whole tree of processes when a worker dies."""

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def apart(check: str, *arguments: str | Path, timeout_s: float = 600.0) -> None:
    """Call ``module:function`` with ``arguments`` as text. Raises AssertionError with what it wrote."""
    code = (
        "import sys; from importlib import import_module; module, name = sys.argv[1].split(':'); "
        "getattr(import_module(module), name)(*sys.argv[2:]); print('checked', flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, check, *map(str, arguments)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": f"{_ROOT}:{os.environ.get('PYTHONPATH', '')}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert done.stdout.rstrip().endswith("checked"), done.stdout[-8000:]
