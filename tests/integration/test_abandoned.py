"""A transition that is abandoned, and ``dcr rollback`` (P12); real processes that only the test restarts."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.errors import Unreachable
from dcr.model import ControlState
from dcr.transport.peers import Peers
from dcr_recipes.cli import main
from dcr_recipes.launch.folder import choose, claim
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.border import EXIT_FATAL, INCARNATION
from dcr_recipes.runtime.remote import RemoteRuntime

pytestmark = pytest.mark.processes

WORDS = (
    "model=tiny", "steps=4", "verify=off", "trace=false", "trainer.ranks=1", "audit.rate_mib_s=0",
    "commit.max_attempts=1", "commit.fence_deadline_s=3", "commit.min_receivers=2",
    "faults.kill=[runtime-1:receiver.finish.before:2:1]",
)  # fmt: skip
"""runtime-1 dies in the transition to version 2; the quorum forbids to go on without it."""


class Run:
    """One run's processes, by name."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def start(self, role: str, index: int = 0, incarnation: int = 1) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-m", f"dcr_recipes.processes.{role}", str(self.folder.root), str(index)]
        env = {**os.environ, INCARNATION: str(incarnation), "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if before := self._processes.get(f"{role}-{index}"):
            before.communicate()
        self._processes[f"{role}-{index}"] = process
        return process

    def end(self) -> None:
        """Idempotent."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.communicate()
        self._processes.clear()

    def state(self) -> ControlState:
        return SqliteControlPlane(self.folder.control).read(self.folder.run_id.read_text())

    def served(self, index: int) -> int | None:
        """What the runtime serves; None: nothing, or it is away."""
        runtime = RemoteRuntime(Peers(self.folder.endpoints), f"runtime-{index}", timeout_s=10.0)
        try:
            status = runtime.status()
        except Unreachable:
            return None
        finally:
            runtime.close()
        return status.version if status.is_open else None


@contextmanager
def running(root: Path) -> Iterator[Run]:
    folder, config = choose([*WORDS, f"run_dir={root}"])
    with claim(folder, config):
        run = Run(folder)
        try:
            yield run
        finally:
            run.end()


def until(reached: Callable[[], bool], why: str) -> None:
    end = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < end, why
        time.sleep(0.1)


def test_an_abandoned_transition_and_its_rollback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = str(tmp_path / "run")
    with running(tmp_path / "run") as run:
        run.start("coordinator")
        runtimes = [run.start("runtime", index) for index in range(2)]
        trainer = run.start("trainer")
        said, _ = trainer.communicate(timeout=180)
        _check_abandoned(run, trainer.returncode, said)
        assert runtimes[1].wait(timeout=10) == -signal.SIGKILL

        assert main(["rollback", root]) == 1, "runtime-1 is gone"
        shown = capsys.readouterr().out
        assert "runtime-0  serves version 1" in shown
        assert "runtime-1  fence: Unreachable" in shown
        until(lambda: run.served(0) == 1, "the one that lives does not serve the committed version")

        run.start("runtime", 1, incarnation=2)
        until(lambda: run.served(1) == 1, "the restarted one was not admitted")
        assert main(["rollback", root, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told == {"version": 1, "serving": ["runtime-0", "runtime-1"], "failed": {}}
        until(lambda: (run.served(0), run.served(1)) == (1, 1), "it does not serve after another rollback")
        assert main(["verify", root]) == 0, "bit for bit"
        run.end()
    capsys.readouterr()
    assert main(["rollback", root]) == 2
    assert "resume=true" in capsys.readouterr().err


def _check_abandoned(run: Run, code: int, said: str) -> None:
    assert code == EXIT_FATAL, said
    last = said.splitlines()[-1]
    assert last.startswith("error: step 2: 2 attempts failed, the last of them a dense refit"), said
    assert "dcr rollback" in last
    state = run.state()
    assert (state.record.version, state.active, state.members) == (1, None, ("runtime-0", "runtime-1"))
    assert run.served(0) is None, "it holds part of what was abandoned"
