"""Who coordinates: every embedded implementation under the one contract."""

import time
from functools import partial
from pathlib import Path

import pytest

from dcr.commit.leadership.memory import MemoryLeadership, Seats
from dcr.commit.leadership.sqlite import SqliteLeadership
from dcr.errors import ConfigError, StoreError
from dcr.testing.leadership_suite import RUN, LeadershipContract, Race, SharedLeadershipContract


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += seconds


class TestMemoryLeadership(LeadershipContract):
    @pytest.fixture
    def race(self) -> Race:
        clock = Clock()
        return Race(partial(MemoryLeadership, Seats(4.0, clock)), 4.0, clock.wait)


class TestSqliteLeadership(LeadershipContract):
    @pytest.fixture
    def race(self, tmp_path: Path) -> Race:
        clock = Clock()
        join = partial(SqliteLeadership, tmp_path / "control.sqlite", lease_s=4.0, clock=clock)
        return Race(join, 4.0, clock.wait)


class TestSqliteLeadershipOfProcesses(SharedLeadershipContract):
    @pytest.fixture
    def race(self, tmp_path: Path) -> Race:
        return Race(partial(SqliteLeadership, tmp_path / "control.sqlite", lease_s=0.6), 0.6, time.sleep)


def test_a_missing_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.*create it first"):
        SqliteLeadership(tmp_path / "nowhere" / "c", RUN, "a", lease_s=1.0)


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"not a database " * 100)
    with pytest.raises(StoreError, match=r"notes\.txt"):
        SqliteLeadership(tmp_path / "notes.txt", RUN, "a", lease_s=1.0)


def test_a_clock_that_jumps_does_not_replace_a_living_holder(tmp_path: Path) -> None:
    """What counts is that the beat stands still between two looks, not what any clock says."""
    clock = Clock()
    join = partial(SqliteLeadership, tmp_path / "c", RUN, lease_s=4.0)
    first, second = join("a"), join("b", clock=clock)
    assert first.campaign()
    for _ in range(3):
        assert not second.campaign()
        clock.wait(1000.0)
        assert first.campaign()
