"""How much memory a process and its children have ever had resident, as the kernel counts it."""

import contextlib
import re
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_KIB = 1024


def peak_rss_bytes(process: int) -> int:
    """Peak resident bytes of the process with this id, and of each of its living children, added up.

    0 if it is gone, or where there is no ``/proc``.
    """
    try:
        found = _PEAK.search(Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0
    own = int(found[1]) * _KIB if found else 0
    return own + sum(map(peak_rss_bytes, _children(process)))


def _children(process: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread has just ended
            found += map(int, path.read_text().split())
    return found
