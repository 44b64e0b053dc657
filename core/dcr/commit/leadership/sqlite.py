"""Leadership among processes of one host, beside the control plane in its SQLite file.

The active one counts a beat upwards. A candidate that saw the same beat for a whole lease, by its
own monotonic clock, takes its place: no clocks are compared, and one that is stopped is replaced
like one that is dead.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from dcr.errors import ConfigError, StoreError
from dcr.model import RunId

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS leader (run TEXT PRIMARY KEY, holder TEXT NOT NULL, beat INTEGER NOT NULL)"
    " WITHOUT ROWID"
)
_LONGEST_WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the row said, and since when it has said so by this process's clock."""

    holder: str
    beat: int
    since: float


class SqliteLeadership:
    """``Leadership`` of ``run`` for the candidate ``name``, in the file of a ``SqliteControlPlane``.

    Raises:
        ConfigError: the folder of ``path`` does not exist.
        StoreError: the file cannot be opened or is no database.
    """

    def __init__(
        self, path: Path, run: RunId, name: str, *, lease_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        if not path.parent.is_dir():
            raise ConfigError(f"leadership: folder {path.parent} does not exist; create it first")
        self._path = path
        self._run = run
        self._name = name
        self._lease_s = lease_s
        self._clock = clock
        self._seen: _Seen | None = None
        with self._connection() as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute(_SCHEMA)

    def campaign(self) -> bool:
        """See ``Leadership.campaign``."""
        with self._writing() as db:
            row = self._row(db)
            if row is not None and row[0] != self._name and not self._is_stale(*row):
                return False
            beat = 1 if row is None else row[1] + 1  # never the beat that a stale holder may still write
            sql = "INSERT OR REPLACE INTO leader (run, holder, beat) VALUES (?, ?, ?)"
            db.execute(sql, (self._run, self._name, beat))
        self._seen = None
        return True

    def resign(self) -> None:
        """See ``Leadership.resign``."""
        with self._writing() as db:
            db.execute("DELETE FROM leader WHERE run = ? AND holder = ?", (self._run, self._name))

    def holder(self) -> str:
        """See ``Leadership.holder``."""
        with self._connection() as db:
            row = self._row(db)
        return "" if row is None else row[0]

    def _is_stale(self, holder: str, beat: int) -> bool:
        now, seen = self._clock(), self._seen
        if seen is None or (seen.holder, seen.beat) != (holder, beat):
            self._seen = _Seen(holder, beat, now)
            return False
        return now - seen.since >= self._lease_s

    def _row(self, db: sqlite3.Connection) -> tuple[str, int] | None:
        row: tuple[str, int] | None = db.execute(
            "SELECT holder, beat FROM leader WHERE run = ?", (self._run,)
        ).fetchone()
        return row

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock inside the block, so that look and write are one step."""
        with self._connection() as db:
            db.execute("BEGIN IMMEDIATE")
            yield db
            db.execute("COMMIT")

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        """A beat need not survive a power failure, so it is not flushed; the control plane's writes are."""
        try:
            timeout_s = min(self._lease_s / 3, _LONGEST_WAIT_S)
            db = sqlite3.connect(self._path, timeout=timeout_s, isolation_level=None)
            try:
                db.execute("PRAGMA synchronous=NORMAL")
                yield db
            finally:
                db.close()
        except sqlite3.Error as err:
            raise StoreError(f"leadership in {self._path}: {err}; check the file and its disk") from err
