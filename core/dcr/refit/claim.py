"""One owner per trackers folder: two ranks that write the same trackers would tear them silently."""

import fcntl
import os
from pathlib import Path

from dcr.errors import ConfigError, StoreError


class Claim:
    """Exclusive hold on a folder for as long as the object, or its process, lives."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Let others have the folder. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def claim_folder(folder: Path) -> Claim:
    """Take ``folder``, which is created, for this rank alone.

    Raises:
        ConfigError: another live process or rank holds it.
        StoreError: it cannot be created or locked.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    except OSError as err:
        raise StoreError(f"trackers: cannot use {folder}: {err.strerror}") from err
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        os.close(descriptor)
        if isinstance(err, BlockingIOError):
            raise ConfigError(
                f"trackers: {folder} is in use by another rank or process; give each rank a folder of its own"
            ) from None
        raise StoreError(f"trackers: cannot lock {folder}: {err.strerror}") from err
    return Claim(descriptor)
