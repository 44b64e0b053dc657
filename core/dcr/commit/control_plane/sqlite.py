"""Durable control plane in one SQLite file on a local disk (DESIGN R16, P4).

WAL with ``synchronous=FULL``: a commit is on disk before it is acknowledged. A write takes the
write lock first (``BEGIN IMMEDIATE``), so compare and set are one atomic step across processes.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcr.commit.control_plane.base import parse_state, require_same_run
from dcr.errors import (
    ConfigError,
    Conflict,
    MissingObject,
    OutcomeUnknown,
    StoreError,
)
from dcr.model import ControlState, RunId, to_json

_SCHEMA = "CREATE TABLE IF NOT EXISTS control (run TEXT PRIMARY KEY, state BLOB NOT NULL) WITHOUT ROWID"
_FIXES = {
    sqlite3.SQLITE_FULL: "free space on its disk",
    sqlite3.SQLITE_READONLY: "make the file and its folder writable",
    sqlite3.SQLITE_CANTOPEN: "check that it is a file this user may write",
    sqlite3.SQLITE_NOTADB: "it is not a control plane; name another file",
    sqlite3.SQLITE_CORRUPT: "restore it from a copy; it is damaged",
    sqlite3.SQLITE_BUSY: "find the process that holds its lock",
    sqlite3.SQLITE_IOERR: "check the disk under it",
}


class SqliteControlPlane:
    """``ControlPlane`` with one row per run: the canonical JSON of its ControlState.

    Every operation opens its own connection, so one object may be used from any thread or process.

    Raises:
        ConfigError: the folder of ``path`` does not exist.
        StoreError: the file cannot be opened or is no database.
    """

    def __init__(self, path: Path, *, busy_timeout_s: float = 30.0) -> None:
        if not path.parent.is_dir():
            raise ConfigError(f"control plane: folder {path.parent} does not exist; create it first")
        self._path = path
        self._timeout_s = busy_timeout_s
        with self._connection() as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(_SCHEMA)

    def create(self, state: ControlState) -> None:
        """Create the run's value durably; raises Conflict if it exists."""
        sql = "INSERT INTO control (run, state) VALUES (?, ?) ON CONFLICT DO NOTHING"
        if not self._write(sql, (state.run, to_json(state))):
            raise Conflict(f"run {state.run} exists already in {self._path}")

    def read(self, run: RunId) -> ControlState:
        """Return the value; raises MissingObject without one."""
        with self._connection() as db:
            row = db.execute("SELECT state FROM control WHERE run = ?", (run,)).fetchone()
        if row is None:
            raise MissingObject(f"no run {run} in {self._path}")
        return parse_state(run, row[0], f"control plane {self._path}")

    def compare_and_set(self, expected: ControlState, state: ControlState) -> None:
        """Replace ``expected`` by ``state`` durably; raises Conflict if the value is another."""
        require_same_run(expected, state)
        sql = "UPDATE control SET state = ? WHERE run = ? AND state = ?"
        if not self._write(sql, (to_json(state), expected.run, to_json(expected))):
            raise Conflict(f"run {expected.run}: the value is no longer revision {expected.revision}")

    def _write(self, sql: str, values: tuple[object, ...]) -> bool:
        """Run one statement in its own transaction; whether it changed a row."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            changed = db.execute(sql, values).rowcount == 1
            try:
                db.execute("COMMIT" if changed else "ROLLBACK")
            except sqlite3.Error as err:
                raise self._after_commit(err) from err
        return changed

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            db = sqlite3.connect(self._path, timeout=self._timeout_s, isolation_level=None)
            try:
                db.execute("PRAGMA synchronous=FULL")
                yield db
            finally:
                db.close()
        except sqlite3.Error as err:
            raise self._store_error(err) from err

    def _store_error(self, err: sqlite3.Error) -> StoreError:
        fix = _FIXES.get(_primary(err), "check the file and its disk")
        return StoreError(f"control plane {self._path}: {err}; {fix}")

    def _after_commit(self, err: sqlite3.Error) -> StoreError | OutcomeUnknown:
        """A full disk leaves no commit mark in the log; after any other error it may be there (P4)."""
        if _primary(err) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_READONLY):
            return self._store_error(err)
        return OutcomeUnknown(f"control plane {self._path}: {err} while committing")


def _primary(err: sqlite3.Error) -> int:
    """SQLite's primary result code; extended codes keep it in the low byte."""
    return int(getattr(err, "sqlite_errorcode", 0)) & 0xFF
