"""Forked trainer ranks of the lanes: one that dies or hangs is a failure, not a success without a word."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.lanes.shared import trainer_world
from tests.lanes.shared.trainer_world import fork_ranks, require_success

pytestmark = pytest.mark.processes


def _die(rank: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(rank: int) -> None:
    signal.pause()


def _raise(rank: int) -> None:
    raise ValueError("this one")


def test_ranks_that_end_well_leave_nothing(tmp_path: Path) -> None:
    fork_ranks(tmp_path, 2, lambda rank: None)
    require_success(tmp_path)


@pytest.mark.parametrize(("body", "told"), [(_die, "code -9"), (_hang, "code -9"), (_raise, "this one")])
def test_others_fail(
    body: Callable[[int], None], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if body is _hang:
        monkeypatch.setattr(trainer_world, "_DEADLINE_S", 2.0)
    fork_ranks(tmp_path, 1, body)
    with pytest.raises(AssertionError, match=told):
        require_success(tmp_path)
