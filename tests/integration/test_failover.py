"""Coordinators that are killed and stopped while owners hold an uncommitted candidate (P10), on SQLite."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.failover_runs import (
    Fleet,
    fleet,
    found_again,
    killed_when_the_run_was_created,
    killed_while_the_candidate_is_uncommitted,
    stopped_while_the_candidate_is_uncommitted,
    taken_over_only_by_name,
)

from dcr.refit import ControlSpec

pytestmark = pytest.mark.processes


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Fleet]:
    with fleet(tmp_path, ControlSpec("sqlite", tmp_path / "control"), "ab" * 16) as made:
        yield made


def test_killed(run: Fleet) -> None:
    killed_while_the_candidate_is_uncommitted(run, "owner.close.before")
    found_again(run)
    taken_over_only_by_name(run)


def test_killed_when_the_run_was_created(run: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_when_the_run_was_created(run, monkeypatch)


def test_stopped(run: Fleet) -> None:
    stopped_while_the_candidate_is_uncommitted(run, "receiver.finish.before")
