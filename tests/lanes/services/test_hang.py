"""A runtime that hangs: left out by the straggler policy, and back once it goes on (P11); real processes."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integration.kill_runs import Finished, processes_of, start
from tests.integration.kill_traces import check_served_only_what_was_proven, opened_attempts

from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.errors import Unreachable
from dcr.model import ControlState
from dcr.transport.peers import Peers
from dcr_recipes.layout import RunFolder
from dcr_recipes.runtime.answers import GenerateAnswer
from dcr_recipes.runtime.remote import RemoteRuntime

if TYPE_CHECKING:
    import subprocess

pytestmark = pytest.mark.processes

HUNG = "runtime-1"
WORDS = (
    "steps=100000",
    "trace=false",
    "runtime.instances=3",
    "commit.lease_s=1",
    "commit.evict_after_s=2",
    "runtime.request_deadline_s=10",
    "faults.kill=[nobody:receiver.restore.before:1]",  # has every process keep a journal
)


@dataclass(frozen=True)
class Live:
    """A run that goes on until its driver is ended."""

    folder: RunFolder
    hung: RemoteRuntime

    def state(self) -> ControlState:
        return SqliteControlPlane(self.folder.control).read(self.folder.run_id.read_text())

    @property
    def finished(self) -> Finished:
        return Finished(self.folder, (), "")

    def ask(self) -> GenerateAnswer | None:
        try:
            return self.hung.generate(prompts=[[1, 2]], seeds=[[1]], max_new_tokens=2, temperature=1.0)
        except Unreachable:
            return None


@contextmanager
def _running(root: Path) -> Iterator[Live]:
    driver = start(root, *WORDS)
    folder = RunFolder(root)
    hung = RemoteRuntime(Peers(folder.endpoints), HUNG, timeout_s=200.0)
    try:
        _until(lambda: (folder.root / "metrics.jsonl").exists(), driver)
        yield Live(folder, hung)
    finally:
        hung.close()
        driver.terminate()
        driver.communicate(timeout=60)


def _until(reached: Callable[[], bool], driver: "subprocess.Popen[str] | None" = None) -> None:
    end = time.monotonic() + 180
    while not reached():
        assert time.monotonic() < end
        assert driver is None or driver.poll() is None
        time.sleep(0.1)


@pytest.mark.parametrize("seconds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_a_runtime_that_hangs_is_left_out_and_comes_back(tmp_path: Path, seconds: int) -> None:
    with _running(tmp_path / "run") as live, ThreadPoolExecutor(1) as pool:
        _until(lambda: live.state().record.version >= 2)
        pid = live.hung.status().process
        os.kill(pid, signal.SIGSTOP)
        stopped_at = time.monotonic()
        waiting: Future[GenerateAnswer | None] = pool.submit(live.ask)
        try:
            _until(lambda: HUNG not in live.state().members)
            left_out = live.state().record.version
            _until(lambda: len(live.finished.rows) >= left_out + 3)
            _until(lambda: time.monotonic() >= stopped_at + seconds)
        finally:
            without = live.state().record.version
            os.kill(pid, signal.SIGCONT)
        late = waiting.result()
        _until(lambda: HUNG in live.state().members)
        back = live.state().record.version
        _until(lambda: len(live.finished.rows) >= back + 3)
        assert live.hung.status().process == pid, "it was not started anew"
    _check(live, late, left_out=left_out, without=without, back=back)


def _check(live: Live, late: GenerateAnswer | None, *, left_out: int, without: int, back: int) -> None:
    # what was asked of it while it hung is not answered with what it held then
    assert late is None or late.version >= without
    assert without >= left_out + 3, "the others served on"
    required = {manifest.attempt.version: manifest.required for manifest in live.finished.manifests()}
    assert all(HUNG not in required[version] for version in range(left_out + 2, without + 1))
    assert HUNG in required[back + 2]
    assert all(row["verify/differing_bits"] == 0 for row in live.finished.rows)
    lines = live.finished.journal(HUNG)
    check_served_only_what_was_proven(lines)
    restored = [line["version"] for line in lines if line["point"] == "receiver.restore.after"]
    assert restored[-1] >= without, "it was restored and proven before it served again"
    assert not [a for a in opened_attempts(lines) if left_out + 1 < a.version <= without]
    assert processes_of(live.folder.root) == []
