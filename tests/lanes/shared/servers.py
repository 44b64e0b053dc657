"""A server as a user would start it: a process of its own that listens on a port of this machine."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

_START_S = 400


@contextmanager
def running(
    command: Callable[[int], Sequence[str]], environment: Mapping[str, str], log: Path, *, ready: str
) -> Iterator[str]:
    """What ``command`` of a free port starts; yields its address once it answers ``ready`` with success."""
    port = _free_port()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(port), env={**os.environ, **environment}, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(f"{url}{ready}", process, log)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_PATIENCE_S = 180
"""Longer than a call that nobody answers (``commit.fence_deadline_s``): a server may leave before one."""


def until(holds: Callable[[], bool]) -> None:
    """Return when it does. Raises AssertionError after ``_PATIENCE_S``."""
    end = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def _free_port() -> int:
    """Below those that the system hands out: an engine takes some for itself before its server listens."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _wait(ready: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + _START_S
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()[-4000:]
        try:
            if httpx.get(ready, timeout=5).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.5)
    raise AssertionError(log.read_text()[-4000:])
