"""What an engine leaves behind is shown at the end of the lane and decides nothing (see ``lenient``)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOOKS = "from tests.lanes.lenient import pytest_configure, pytest_unconfigure\n"
LEAK = """\
import zmq

def test_leak():
    left = [zmq.Context()]
    left.append(left)
    globals()["kept"] = left  # until the session's end, as an engine's cycles may be
    del left
    assert {verdict}
    globals().pop("kept")
"""


def session(folder: Path, hooks: str, verdict: bool) -> "subprocess.CompletedProcess[str]":
    """A session of pytest in which a ZeroMQ context is left open in a cycle."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (folder / "conftest.py").write_text(f"import gc\n\ngc.disable()\n{hooks}")
    (folder / "test_leak.py").write_text(LEAK.format(verdict=verdict))
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_open_context_is_shown_and_decides_nothing(tmp_path: Path) -> None:
    done = session(tmp_path, HOOKS, verdict=True)
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "ResourceWarning: Unclosed context" in done.stdout + done.stderr


def test_a_failing_test_still_fails(tmp_path: Path) -> None:
    done = session(tmp_path, HOOKS, verdict=False)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr


def test_without_the_hooks_the_session_ends_in_an_exception(tmp_path: Path) -> None:
    done = session(tmp_path, "", verdict=True)
    assert "1 passed" in done.stdout
    assert done.returncode != pytest.ExitCode.OK
    assert "Unclosed context" in done.stderr
