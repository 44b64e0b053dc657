"""Token buckets of the kernel (``tbf``) on the loopback device of a network namespace of our own.

The host's devices are never touched: the process that wants kernel links first enters a fresh namespace,
in which it and all its children see nothing but their own loopback device. A link is then an address of it
(127.0.1.N): what goes there and what comes from there passes a bucket each.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass

from dcr.errors import ConfigError
from dcr_recipes.links.bucket import DEFAULT_BURST_BYTES

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET
_DEVICE = "lo"
_UNLIMITED_BIT_S = 100_000_000_000
_QUEUED_S = 0.1
"""What may wait in front of a bucket; more would keep small requests behind large answers for seconds."""
_MOST_LINKS = 250
_PROBE = "from dcr_recipes.links.kernel import enter, KernelLink; enter(); KernelLink(1).limit(1_000_000)"


def why_not() -> str:
    """Why this machine allows no kernel links, found out in a process of its own; empty if it does."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (iproute2) not installed"
    tried = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    return "" if tried.returncode == 0 else (tried.stderr.strip().splitlines() or ["refused"])[-1]


def enter() -> None:
    """Put this process, and what it starts from now on, into a network namespace with shapeable loopback.

    For good: there is no way back. Call it before any thread or socket is made.

    Raises:
        ConfigError: it is not allowed here, or there are threads already.
    """
    if threading.active_count() > 1:
        raise ConfigError("a network namespace must be entered before threads are started")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK) != 0:
        raise ConfigError(f"no network namespace: {os.strerror(ctypes.get_errno())}; use --limiter user")
    _run("ip", "link", "set", _DEVICE, "up")
    _run("tc", "qdisc", "add", "dev", _DEVICE, "root", "handle", "1:", "htb")


@dataclass(slots=True)
class KernelLink:
    """Both directions of address 127.0.1.``number`` of the namespace that was entered; unlimited at first."""

    number: int
    burst_bytes: int = DEFAULT_BURST_BYTES

    def __post_init__(self) -> None:
        """Give each direction a bucket.

        Raises:
            ConfigError: the number is none, or the kernel refuses.
        """
        if not 1 <= self.number <= _MOST_LINKS:
            raise ConfigError(f"link {self.number} is not one of 1 to {_MOST_LINKS}")
        for number, end in zip(self._classes, ("dst", "src"), strict=True):
            name, filters = f"1:{number:x}", ("dev", _DEVICE, "parent", "1:", "protocol", "ip", "prio")
            rate = ("rate", f"{_UNLIMITED_BIT_S}bit")
            _run("tc", "class", "replace", "dev", _DEVICE, "parent", "1:", "classid", name, "htb", *rate)
            _try("tc", "filter", "del", *filters, str(number))  # that of an earlier link of this number
            match = ("u32", "match", "ip", end, f"{self.address}/32", "flowid", name)
            _run("tc", "filter", "add", *filters, str(number), *match)
        self.limit(0)

    @property
    def address(self) -> str:
        """Where its server's proxy must listen."""
        return f"127.0.1.{self.number}"

    def limit(self, rate_bytes_s: float) -> None:
        """Change the rate of both directions; 0: no limit. Raises ConfigError as the constructor."""
        bits = round(8 * rate_bytes_s) or _UNLIMITED_BIT_S
        queued_bytes = 2 * self.burst_bytes + round(_QUEUED_S * rate_bytes_s)
        bucket = ("tbf", "rate", f"{bits}bit", "burst", str(self.burst_bytes), "limit", str(queued_bytes))
        for number in self._classes:
            leaf = ("parent", f"1:{number:x}", "handle", f"{number + 1:x}0:")
            _run("tc", "qdisc", "replace", "dev", _DEVICE, *leaf, *bucket)

    @property
    def _classes(self) -> tuple[int, int]:
        return 2 * self.number, 2 * self.number + 1


def _run(*words: str) -> None:
    if refusal := _try(*words):
        raise ConfigError(f"{' '.join(words)}: {refusal}")


def _try(*words: str) -> str:
    """Why the kernel refuses; empty if it does not."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return (done.stderr.strip() or str(done.returncode)) if done.returncode else ""
