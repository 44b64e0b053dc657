"""A process whose connections can be cut from outside: fault injection, and only in runs started with it.

``faults.cut_connections_s`` is how long a cut lasts; 0, the default, leaves the signal alone. At SIGUSR1
every TCP connection of the process, of its server and of its clients, ends at once, whatever is on its way
in it; so does every new one until the cut is over.
"""

import contextlib
import os
import signal
import socket
import struct
import threading
import time
from pathlib import Path

CUT = signal.SIGUSR1
_LOOK_S = 0.02
_ABORT = struct.pack("ii", 1, 0)
"""SO_LINGER of no seconds: what was not sent yet never is."""


def install(seconds: float) -> None:
    """Cut connections for ``seconds`` at each signal; to be called in the main thread."""

    def begin(_signal: int, _frame: object) -> None:
        threading.Thread(target=cut_for, args=(seconds,), name="cut", daemon=True).start()

    signal.signal(CUT, begin)


def is_installed(pid: int) -> bool:
    """Whether the process ``pid`` would cut its connections; the signal would end it otherwise."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (CUT - 1) & 1)
    return False


def cut_for(seconds: float) -> None:
    """End every connection that this process has or gets within ``seconds``."""
    end = time.monotonic() + seconds
    while True:
        cut_now()
        if time.monotonic() >= end:
            return
        time.sleep(_LOOK_S)


def cut_now() -> int:
    """End every TCP connection of this process; returns how many there were."""
    cut = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # closed meanwhile, not a socket, or not connected
            cut += _cut(int(name))
    return cut


def _cut(descriptor: int) -> bool:
    copy = os.dup(descriptor)  # a number that nobody closes and takes again under our hands
    try:
        connection = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return False
    with connection:
        is_tcp = connection.family in (socket.AF_INET, socket.AF_INET6) and (
            connection.type == socket.SOCK_STREAM
        )
        if not is_tcp or connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return False
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
        connection.shutdown(socket.SHUT_RDWR)
    return True
