"""Ending everything that a process has started, however that process itself ends. Standard library only.

A serving process may have children that do not notice its death (an inference engine's). It leads a
process group; run as a program, this file waits until its leader is gone and ends the rest of the group.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

_SPARED = b"multiprocessing.resource_tracker"
"""It ends by itself when all others have, and takes their shared memory with it."""


def watch_group() -> None:
    """Have all children of this process end with it, if it leads its group; else it is somebody else's."""
    leader = os.getpid()
    if os.getpgrp() != leader or sys.platform != "linux":
        return
    ours, theirs = os.pipe()  # the writing end closes with this process: nobody inherits it
    argv = [sys.executable, "-S", __file__, str(leader)]
    subprocess.Popen(argv, stdin=ours, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(ours)
    os.register_at_fork(after_in_child=lambda: os.close(theirs))


def end_group(leader: int) -> None:
    """SIGKILL every process of the group that ``leader`` leads or led, but for trackers of shared memory."""
    for pid in _members(leader):
        with contextlib.suppress(OSError):
            if pid != os.getpid() and _SPARED not in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def _members(leader: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            after_name = path.read_text(errors="replace").rpartition(")")[2].split()
            if int(after_name[2]) == leader:
                found.append(int(path.parent.name))
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end_group(int(sys.argv[1]))
