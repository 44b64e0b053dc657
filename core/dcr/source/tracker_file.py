"""One memory-mapped file with the tracker bytes of all owned tasks (DESIGN R3).

One file for all tasks: a fold-in then costs one flush, not one per tensor. Its blocks are
allocated at creation, so that a full disk is an error there and not a fatal signal at a later write.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np

from dcr.errors import StoreError
from dcr.model import Bits, bits_dtype, width_bytes
from dcr.source.task import AffineTask
from dcr.transport.durable import sync_path

ALIGNMENT_BYTES = 64


@contextmanager
def disk_errors(path: Path, what: str) -> Iterator[None]:
    """Turn an operating-system error into a StoreError that names the path and the action."""
    try:
        yield
    except OSError as err:
        raise StoreError(
            f"cannot {what} {path}: {err.strerror or err}; make space or fix the directory, then try again "
            "(nothing is lost)"
        ) from err


def offsets(tasks: Sequence[AffineTask]) -> tuple[dict[str, int], int]:
    """Where each task's tracker begins, by its key, and bytes in all."""
    starts: dict[str, int] = {}
    end = 0
    for task in tasks:
        starts[task.key] = end
        num_bytes = task.num_elements * width_bytes(task.dtype)
        end += -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return starts, max(end, ALIGNMENT_BYTES)


class TrackerFile:
    """Maps the file and hands out one array per task; offsets follow from the tasks alone."""

    def __init__(self, path: Path, tasks: Sequence[AffineTask]) -> None:
        self._path = path
        self._offsets, self.num_bytes = offsets(tasks)

    def is_intact(self) -> bool:
        """Whether a file of the right size is there."""
        return self._path.is_file() and self._path.stat().st_size == self.num_bytes

    def allocate(self) -> None:
        """Create the file with all its blocks, or resize one of another layout.

        Raises:
            StoreError: the disk is full or the directory cannot be written.
        """
        with disk_errors(self._path, "allocate"):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.ftruncate(handle, self.num_bytes)
                os.posix_fallocate(handle, 0, self.num_bytes)
                os.fsync(handle)
            finally:
                os.close(handle)
            sync_path(self._path.parent)

    def open(self, *, writable: bool = True) -> None:
        """Map the file. Call once it is intact."""
        with disk_errors(self._path, "map"):
            mode: Literal["r+", "r"] = "r+" if writable else "r"
            self._bytes = np.memmap(self._path, dtype=np.uint8, mode=mode, shape=(self.num_bytes,))

    def view(self, task: AffineTask) -> Bits:
        """The task's tracker bits [N], writable if the file was opened so."""
        dtype, start = bits_dtype(task.dtype), self._offsets[task.key]
        raw = np.asarray(self._bytes[start : start + task.num_elements * dtype.itemsize])
        return raw.view(dtype)

    def sync(self) -> None:
        """Return when everything written is durable."""
        with disk_errors(self._path, "flush"):
            self._bytes.flush()
            sync_path(self._path)
