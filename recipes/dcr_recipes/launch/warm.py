"""A warm process as the driver holds it: asks it for children, and is their parent (see ``warm_process``).

multiprocessing's fork server would be the parent itself: its children would die with it, and only it would
learn how they end. It also has no more than one environment.
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from dcr_recipes.launch.warm_process import MESSAGE_BYTES, Request

_PATIENCE_S = 30.0
"""A fork takes milliseconds; a warm process that does not answer in this time is given up."""
_POLL_S = 0.01
_PROGRAM = "dcr_recipes.launch.warm_process"
_PR_SET_CHILD_SUBREAPER = 36


class Forked:
    """A child of this process that another one forked; what the supervisor needs of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        """``pid`` is a child of this process that nobody else waits for."""
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for the signal that killed it; None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """SIGTERM, if it has not been seen to end."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, if it has not been seen to end."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class WarmProcess:
    """One warm process, which serves children of one environment. Used from one thread."""

    def __init__(
        self, run_dir: str, modules: Sequence[str], *, env: Mapping[str, str], log: Path, room: int, lock: int
    ) -> None:
        """Start importing. ``room``: bytes of the longest command line that a child will show.

        ``env`` is the whole environment of its children; they inherit the descriptor ``lock`` (-1: none).
        """
        self.log = log
        self._is_ready = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-m", _PROGRAM, run_dir, str(theirs.fileno()), ",".join(modules)]
        argv.append("." * max(1, room - command_bytes(argv)))
        passed = (theirs.fileno(),) if lock < 0 else (theirs.fileno(), lock)
        with theirs, log.open("ab") as out:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                pass_fds=passed,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def is_ready(self) -> bool:
        """Whether it has imported everything.

        Raises:
            OSError: it has ended.
        """
        if not self._is_ready and select.select([self._control], [], [], 0)[0]:
            self._is_ready = bool(self._receive())
        return self._is_ready

    def fork(self, request: Request, log: BinaryIO) -> Forked:
        """Have it fork a child of this process whose output goes to ``log``. It must be ready.

        Raises:
            OSError: it cannot or has ended, and no child is left.
        """
        with _orphans_come_here():
            self._control.settimeout(_PATIENCE_S)
            with contextlib.suppress(BrokenPipeError):  # the answer then says how it ended
                socket.send_fds(self._control, [request.to_bytes()], [log.fileno()])
            answer = json.loads(self._receive())
        if "pid" not in answer:
            raise OSError(answer["error"])
        return _adopted(answer["pid"])

    def stop(self) -> None:
        """End it, and a child that it announced but nobody took. What was handed out lives on. Idempotent."""
        self._process.kill()
        self._process.wait()
        self._control.setblocking(False)
        with contextlib.suppress(OSError), self._control:
            while data := self._control.recv(MESSAGE_BYTES):
                if data.startswith(b"{") and (pid := json.loads(data).get("pid")):
                    os.kill(pid, signal.SIGKILL)

    def _receive(self) -> bytes:
        data = b""
        with contextlib.suppress(ConnectionResetError):  # it ended before it read what was sent
            data = self._control.recv(MESSAGE_BYTES)
        if not data:
            raise OSError(f"it {self._how()}")
        return data

    def _how(self) -> str:
        code = self._process.wait(_PATIENCE_S)
        return f"ended with code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"


def command_bytes(argv: Sequence[str]) -> int:
    """Room that a command line takes in a process."""
    return sum(len(os.fsencode(word)) + 1 for word in argv)


def _adopted(pid: int) -> Forked:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError as err:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise OSError("the kernel gave its child to another process") from err
    return Forked(pid)


@contextlib.contextmanager
def _orphans_come_here() -> Iterator[None]:
    """Inside, a process below this one whose parent ends becomes this one's child."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "PR_SET_CHILD_SUBREAPER is refused")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
