"""How much memory a process has ever had resident, as the kernel counts it."""

import re
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)
_KIB = 1024


def peak_rss_bytes(process: int) -> int:
    """Peak resident bytes of the process with this id; 0 if it is gone, or where there is no ``/proc``."""
    try:
        found = _PEAK.search(Path(f"/proc/{process}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * _KIB if found else 0
