"""Every control plane under the one contract, and what is particular to SQLite."""

import sqlite3
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.commit.transitions import take_over
from dcr.errors import ConfigError, IntegrityError, StoreError
from dcr.model import to_json
from dcr.testing.control_plane_suite import (
    OTHER_RUN,
    RUN,
    ControlPlaneContract,
    OpenPlane,
    SharedControlPlaneContract,
    first_state,
)


class TestMemoryControlPlane(ControlPlaneContract):
    @pytest.fixture
    def open_plane(self) -> OpenPlane:
        plane = MemoryControlPlane()
        return lambda: plane


class TestSqliteControlPlane(SharedControlPlaneContract):
    @pytest.fixture
    def open_plane(self, tmp_path: Path) -> OpenPlane:
        return partial(SqliteControlPlane, tmp_path / "control.sqlite")


def test_a_missing_folder_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere.*create it first"):
        SqliteControlPlane(tmp_path / "nowhere" / "control.sqlite")


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{tmp_path}.*check that it is a file"):
        SqliteControlPlane(tmp_path)


def test_a_foreign_file_is_named_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(b"not a database " * 100)
    with pytest.raises(StoreError, match=r"notes\.txt.*not a control plane"):
        SqliteControlPlane(path)
    assert path.read_bytes() == b"not a database " * 100


@pytest.mark.parametrize("stored", [b"", b"{}", None], ids=["empty", "no value", "another run's"])
def test_a_damaged_value_is_named_and_never_taken_for_one(tmp_path: Path, stored: bytes | None) -> None:
    path = tmp_path / "control.sqlite"
    plane = SqliteControlPlane(path)
    plane.create(first_state())
    value = to_json(first_state(OTHER_RUN)) if stored is None else stored
    with sqlite3.connect(path) as db:
        db.execute("UPDATE control SET state = ?", (value,))
    db.close()
    with pytest.raises(IntegrityError, match=r"control\.sqlite: the value of run 0+ is damaged"):
        plane.read(RUN)


def test_a_lock_that_is_never_released_is_a_store_error(tmp_path: Path) -> None:
    plane = SqliteControlPlane(tmp_path / "c", busy_timeout_s=0.0)
    other = sqlite3.connect(tmp_path / "c", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="holds its lock"):
        plane.create(first_state())
    other.close()
    plane.create(first_state())


def test_it_writes_ahead_and_survives_another_handle(tmp_path: Path) -> None:
    SqliteControlPlane(tmp_path / "c").create(first_state())
    db = sqlite3.connect(tmp_path / "c")
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()
    assert SqliteControlPlane(tmp_path / "c").read(RUN).revision == 0


def test_a_full_disk_is_a_clear_error_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page limit stands in for the disk: SQLite reports both as SQLITE_FULL."""
    path = tmp_path / "control.sqlite"
    plane = SqliteControlPlane(path)
    state = first_state()
    plane.create(state)
    connect = sqlite3.connect

    def connect_to_small_disk(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **kwargs)
        db.execute("PRAGMA max_page_count=4")
        return db

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", connect_to_small_disk)
        with pytest.raises(StoreError, match=r"control\.sqlite.*full; free space"):
            plane.compare_and_set(state, take_over(state, "x" * 40_000))
    assert plane.read(RUN) == state
    plane.compare_and_set(state, take_over(state, "after"))


_WRITE_BEYOND_LIMIT = """
import resource, signal, sys
from pathlib import Path
from typing import Any
from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.commit.transitions import take_over
from dcr.errors import RefitError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
plane = SqliteControlPlane(Path(sys.argv[1]))
state = plane.read(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (36_000, 36_000))
small = take_over(state, "small")
plane.compare_and_set(state, small)
try:
    plane.compare_and_set(small, take_over(small, "x" * 60_000))
except RefitError as err:
    print(type(err).__name__, err)
"""


def test_a_failed_write_while_committing_is_never_called_a_failure(tmp_path: Path) -> None:
    """The disk fails under the log (here: a file size limit): whether the commit is in it is unknown (P4)."""
    path = tmp_path / "control.sqlite"
    SqliteControlPlane(path).create(first_state())
    done = subprocess.run(
        [sys.executable, "-c", _WRITE_BEYOND_LIMIT, str(path), RUN],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("OutcomeUnknown")
    assert str(path) in done.stdout
    state = SqliteControlPlane(path).read(RUN)
    assert state.writer == "small"
    SqliteControlPlane(path).compare_and_set(state, take_over(state, "after"))
