"""Objects as files of one folder, on a local disk or a shared POSIX file system.

An object appears by hard-linking a complete, flushed temporary file to its name: that creates it
if and only if it is absent, in one step, and no reader ever sees a part. A writer that dies leaves
at most a temporary, which nobody reads and ``sweep`` removes. Folders are never removed, which is
what lets a process remember the ones that it has made durable.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from dcr import observe
from dcr.errors import ConfigError, Conflict, MissingObject, StoreError
from dcr.model import new_nonce
from dcr.transport.disk_errors import explained, locked
from dcr.transport.durable import sync_path
from dcr.transport.keys import check_key, check_prefix

_TEMPORARY = ".tmp-"
_MAX_TRIES = 8


class DirectoryStore:
    """ObjectStore over an existing folder. Thread-safe; any number of processes may share the folder.

    Raises:
        ConfigError: ``root`` is missing or is no folder.
    """

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root)
        self._durable: set[Path] = set()
        with explained(self._root):
            if not self._root.is_dir():
                fault = "is not a folder" if self._root.exists() else "does not exist"
                raise ConfigError(f"store folder {self._root} {fault}; create it or correct the store's path")

    def put(self, key: str, data: bytes) -> None:
        """Create the object durably; see ``ObjectStore.put``."""
        path = self._path(key)
        with explained(path):
            self._make_folders(path.parent)
            for _ in range(_MAX_TRIES):
                if _holds(path, data) or _create(path, data):
                    sync_path(path.parent)
                    observe.point("store.put", key=key, num_bytes=len(data))
                    return
        raise StoreError(f"object {path} keeps appearing and vanishing; retry when nobody collects it")

    def get(self, key: str) -> bytes:
        """Return the whole object; see ``ObjectStore.get``."""
        path = self._path(key)
        with explained(path):
            try:
                data = path.read_bytes()
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                self._check_root()
                raise MissingObject(f"no object {path}") from None
        observe.point("store.get", key=key, num_bytes=len(data))
        return data

    def list(self, prefix: str) -> list[str]:
        """Keys that start with ``prefix``, sorted. Temporaries and files that are no keys are left out."""
        folder, start = check_prefix(prefix)
        base = self._root / folder
        with explained(base):
            self._check_root()
            files = _files(base, start) if base.is_dir() else iter(())
            return sorted(key for path in files if _is_key(key := path.relative_to(self._root).as_posix()))

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is no error. May be undone by a power failure."""
        path = self._path(key)
        with explained(path), suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
            path.unlink()

    def sweep(self, prefix: str = "") -> int:
        """Remove the temporaries of dead writers and return how many; live writers hold a lock on theirs."""
        folder, start = check_prefix(prefix)
        base = self._root / folder
        with explained(base):
            files = _files(base, start) if base.is_dir() else iter(())
            temporaries = [path for path in files if path.name.startswith(_TEMPORARY)]
            return sum(_remove_if_dead(path) for path in temporaries)

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _check_root(self) -> None:
        if not self._root.is_dir():
            raise StoreError(f"store folder {self._root} is gone; mount or restore it and retry")

    def _make_folders(self, folder: Path) -> None:
        """Make ``folder`` and its parents below the root, and the entry of each in its parent durable."""
        self._check_root()
        relative = folder.relative_to(self._root).parts
        for depth in range(1, len(relative) + 1):
            path = self._root.joinpath(*relative[:depth])
            try:
                path.mkdir()
            except FileExistsError:
                if not path.is_dir():
                    raise ConfigError(f"{path} is an object; a key cannot also be a folder of keys") from None
            if path not in self._durable:  # another writer may have made it and not flushed it yet
                sync_path(path.parent)
                self._durable.add(path)


def _holds(path: Path, data: bytes) -> bool:
    """Whether the object exists with these bytes.

    Raises:
        ConfigError: the name is a folder.
        Conflict: the object exists with other bytes.
    """
    if path.is_dir():
        raise ConfigError(f"{path} is a folder of keys; a key cannot also be an object")
    try:
        if path.stat().st_size == len(data) and path.read_bytes() == data:
            return True
    except FileNotFoundError:
        return False
    raise Conflict(f"object {path} exists with other bytes; it keeps them")


def _create(path: Path, data: bytes) -> bool:
    """Write, flush and link; false if the name was taken or the temporary swept meanwhile."""
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{new_nonce()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        locked(handle, wait=True)
        _write(handle, data)
        os.fsync(handle)
        os.link(temporary, path)
    except (FileExistsError, FileNotFoundError):
        return False
    finally:
        with suppress(FileNotFoundError):
            temporary.unlink()
        os.close(handle)  # last: the lock covers the temporary for as long as it has a name
    return True


def _write(handle: int, data: bytes) -> None:
    rest = memoryview(data).cast("B")
    while rest:
        rest = rest[os.write(handle, rest) :]


def _files(folder: Path, start: str) -> Iterator[Path]:
    """Files below ``folder`` whose first segment under it begins with ``start``; errors surface."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(start):
                continue
            if entry.is_dir():
                yield from _files(Path(entry.path), "")
            else:
                yield Path(entry.path)


def _is_key(key: str) -> bool:
    try:
        check_key(key)
    except ConfigError:
        return False
    return True


def _remove_if_dead(temporary: Path) -> bool:
    try:
        handle = os.open(temporary, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # its writer has just finished
        return False
    try:
        if not locked(handle, wait=False):
            return False
        temporary.unlink()
    except FileNotFoundError:
        return False
    finally:
        os.close(handle)
    return True
