"""Coordinators that are killed and stopped while owners hold an uncommitted candidate (P10), on SQLite."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.failover_runs import (
    Fleet,
    fleet,
    killed_while_the_candidate_is_uncommitted,
    stopped_while_the_candidate_is_uncommitted,
)

from dcr.refit import ControlSpec

pytestmark = pytest.mark.processes


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, ControlSpec("sqlite", tmp_path / "control"), "ab" * 16) as made:
        yield made


def test_killed(run: Fleet) -> None:
    killed_while_the_candidate_is_uncommitted(run, "owner.close.before")


def test_stopped(run: Fleet) -> None:
    stopped_while_the_candidate_is_uncommitted(run, "receiver.finish.before")
