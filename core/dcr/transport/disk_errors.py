"""What a failing disk means to the caller: one message with the path and the fix, never a bare errno."""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcr.errors import StoreError

_FULL = "no space left under {path}; free space and retry; nothing was lost"
_DENIED = "no permission for {path}; grant this user read and write access and retry; nothing was lost"
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "disk quota exhausted under {path}; raise it or free space and retry; nothing was lost",
    errno.EFBIG: "{path} exceeds the file size limit; raise it (ulimit -f) and retry; nothing was lost",
    errno.EIO: "the disk under {path} reports an I/O error; check the disk, then retry",
    errno.ESTALE: "the mount under {path} is stale; mount it again and retry; nothing was lost",
    errno.EACCES: _DENIED,
    errno.EPERM: "{path} refuses this; the store needs write access and a file system with hard links",
    errno.EROFS: "{path} is on a read-only file system; mount it writable and retry; nothing was lost",
    errno.EOPNOTSUPP: "the file system of {path} has no hard links; put the store on one that has",
}
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn any OSError of the block into a StoreError about ``path``.

    Raises:
        StoreError: the operating system refused; the message names the path and what to do.
    """
    try:
        yield
    except OSError as err:
        advice = _ADVICE.get(err.errno or 0, "{path}: {reason}; correct this and retry")
        raise StoreError(advice.format(path=path, reason=err.strerror or err)) from err


def locked(handle: int, *, wait: bool) -> bool:
    """Lock the open file ``handle`` until it is closed or this process dies; whether that was done.

    False if another holds it and ``wait`` is false, or if the file system has no locks: writers
    then work without, and what dead ones leave stays until it is removed by hand.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as err:
        if err.errno in _NO_LOCKS:
            return False
        raise
    return True
