"""Compressed payloads that wait for their gate to shut, in host memory, then in files (DESIGN R19).

Both are bounded. Nothing is trusted later: a payload is parsed and its digest verified when it is applied.
"""

import contextlib
import logging
import re
import threading
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from dcr.errors import AttemptFailed, ConfigError
from dcr.model import AttemptId

_log = logging.getLogger(__name__)
MIB = 1 << 20
_STAGED = re.compile(r"[0-9a-f]{32}\.staged", re.ASCII)
"""Names of our own files, unlike those of any other: nothing else is ever removed, and no folder is."""


@dataclass(frozen=True, slots=True)
class Room:
    """How much may be held: bytes in memory, and bytes in files of ``folder``, this receiver's alone.

    ``folder`` None: nothing goes to disk.
    """

    memory_bytes: int = 1 << 30
    disk_bytes: int = 0
    folder: Path | None = None

    def __post_init__(self) -> None:
        """Raise ConfigError for a folder that depends on where this process was started."""
        if self.folder is not None and not self.folder.is_absolute():
            raise ConfigError(f"staging.path: {self.folder} is not absolute; name a folder of its own")


@dataclass(frozen=True, slots=True)
class Held:
    """One payload. ``data`` None: it lies in the file named by its digest."""

    attempt: AttemptId
    owner: int
    sequence: int
    digest: str
    num_bytes: int
    data: bytes | None


class StagingArea:
    """Payloads by digest. Thread-safe; no call waits for the network."""

    def __init__(self, room: Room) -> None:
        """Remove payloads that an earlier process of this receiver left in the folder, nothing else.

        Raises:
            ConfigError: the folder cannot be read, or these cannot be removed.
        """
        self._room = room
        self._lock = threading.Lock()
        self._held: dict[str, Held] = {}
        self._in_memory = self._on_disk = 0
        if room.folder is not None:
            _clear(room.folder)

    @property
    def memory_bytes(self) -> int:
        """Bytes held in memory."""
        return self._in_memory

    @property
    def disk_bytes(self) -> int:
        """Bytes held in files."""
        return self._on_disk

    def find(self, digest: str) -> Held | None:
        """What is held under ``digest``."""
        with self._lock:
            return self._held.get(digest)

    def keys(self, attempt: AttemptId) -> set[tuple[int, int]]:
        """(owner, sequence) of what is held of ``attempt``."""
        with self._lock:
            return {(one.owner, one.sequence) for one in self._held.values() if one.attempt == attempt}

    def add(self, attempt: AttemptId, key: tuple[int, int], digest: str, data: bytes) -> None:
        """Hold a payload; one that is held already is no error.

        Raises:
            AttemptFailed: there is room for it neither in memory nor on disk. Nothing of it is kept.
        """
        with self._lock:
            if digest in self._held:
                return
            fits = self._in_memory + len(data) <= self._room.memory_bytes
            if not fits:
                self._spill(digest, data)
            held = Held(attempt, *key, digest, len(data), data if fits else None)
            self._held[digest] = held
            self._count(held, 1)

    def take(self, digest: str) -> bytes | None:
        """The payload, which is not held any more; None if it is not here or its file cannot be read."""
        with self._lock:
            held = self._held.get(digest)
            if held is None:
                return None
            try:
                data = held.data if held.data is not None else self._file(digest).read_bytes()
            except OSError as err:
                _log.warning("staging: %s cannot be read: %s", self._file(digest), err.strerror)
                data = None
            self._drop(held)
            return data

    def retain(self, digests: Collection[str]) -> None:
        """Discard everything else."""
        with self._lock:
            for held in [one for one in self._held.values() if one.digest not in digests]:
                self._drop(held)

    def forget_before(self, number: int) -> None:
        """Discard payloads of attempts before ``number``: they are of other candidates."""
        with self._lock:
            for held in [one for one in self._held.values() if one.attempt.number < number]:
                self._drop(held)

    def _spill(self, digest: str, data: bytes) -> None:
        room = self._room
        if room.folder is None or self._on_disk + len(data) > room.disk_bytes:
            raise AttemptFailed(
                f"staging: a payload of {len(data)} bytes fits neither in memory ({self._in_memory} of "
                f"{room.memory_bytes} bytes are taken) nor on disk ({self._on_disk} of {room.disk_bytes}); "
                "raise staging.memory_mib or staging.disk_mib, or use commit.mode=sync"
            )
        try:
            room.folder.mkdir(parents=True, exist_ok=True)
            self._file(digest).write_bytes(data)
        except OSError as err:
            self._remove(digest)
            raise AttemptFailed(
                f"staging: cannot write {len(data)} bytes to {room.folder}: {err.strerror}; make room there, "
                "name another folder by staging.path, or raise staging.memory_mib"
            ) from err

    def _drop(self, held: Held) -> None:
        del self._held[held.digest]
        self._count(held, -1)
        if held.data is None:
            self._remove(held.digest)

    def _count(self, held: Held, sign: int) -> None:
        if held.data is None:
            self._on_disk += sign * held.num_bytes
        else:
            self._in_memory += sign * held.num_bytes

    def _remove(self, digest: str) -> None:
        with contextlib.suppress(OSError):  # a file that stays is removed by the next process
            self._file(digest).unlink(missing_ok=True)

    def _file(self, digest: str) -> Path:
        assert self._room.folder is not None, "nothing is spilled without a folder"
        return self._room.folder / f"{digest}.staged"


def _clear(folder: Path) -> None:
    try:
        for left in folder.iterdir() if folder.is_dir() else ():
            if _STAGED.fullmatch(left.name):
                left.unlink(missing_ok=True)
    except OSError as err:
        raise ConfigError(
            f"staging.path: {folder} cannot be used: {err.strerror}; name another folder"
        ) from err
