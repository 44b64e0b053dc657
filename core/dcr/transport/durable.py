"""What must still be there after a power failure: contents of files, and the names that folders give them."""

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Make a file's contents, or a folder's entries, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_durably(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``; a new name needs a ``sync_path`` of its folder as well."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes) -> None:
    """Replace a file of one writer: a reader sees the old bytes or the new, and so does one after a crash."""
    staged = path.with_name(f"{path.name}.tmp")
    write_durably(staged, data)
    staged.replace(path)
    sync_path(path.parent)
