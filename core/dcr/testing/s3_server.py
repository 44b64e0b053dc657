"""A real S3 server on the loopback address: SeaweedFS in one process, with its data in one folder.

For tests, and for runs that have no object store of their own. It is ended by ``kill -9``: what it
acknowledged survives that, and an orderly end takes it half a minute.
"""

import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcr.errors import ConfigError, MissingObject, StoreError, Unreachable
from dcr.model import from_json, to_json
from dcr.testing.etcd import free_ports
from dcr.transport.durable import replace_durably
from dcr.transport.s3_client import S3Address, connect, explained

BUCKET = "dcr-run"
_EXEC = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL; kept through exec
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the server, which the kernel then ends with the thread that started it."""
_START_S = 90.0
_ROLES = ("master", "volume", "filer", "s3")
_OPTIONS = (
    "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
    "-master.telemetry=false", "-master.electionTimeout=1s",
    # each bucket grows several volumes in advance: they are kept small
    "-volume.max=300", "-master.volumeSizeLimitMB=128",
    "-s3.autoCreateBucket=false", "-s3.iam=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
    "-s3.localSocket=s3.sock", "-filer.localSocket=filer.sock",
)  # fmt: skip


def weed() -> str:
    """The server's program, beside this interpreter or on the PATH.

    Raises:
        ConfigError: it is not installed.
    """
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.is_file() else shutil.which("weed")
    if found is None:
        raise ConfigError("no S3 server (SeaweedFS) is installed; install it with: make setup-s3")
    return found


@dataclass(frozen=True, slots=True)
class _Made:
    """What a server keeps over its restarts: two ports of each role, and its only credentials."""

    ports: tuple[int, ...]
    key_id: str
    secret: str


class S3Server:
    """One server with everything of it under ``folder``; nothing runs before ``start``.

    A server that is started again keeps its credentials, and its ports if they are still free. It holds
    a lock on the folder, so that no second one is ever started on the same data.

    Raises:
        ConfigError: a server runs on ``folder`` already.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        (self._folder / "data").mkdir(parents=True, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise ConfigError(f"an S3 server runs on {self._folder} already") from None
        self._made = self._remembered()

    @property
    def address(self) -> S3Address:
        """The bucket that ``start`` makes."""
        return address_of(self._folder)

    def command(self) -> list[str]:
        """Words that start the server in ``folder``, which must be its working directory."""
        ports = self._made.ports
        named = [f"-{role}.port={port}" for role, port in zip(_ROLES, ports[::2], strict=True)]
        named += [f"-{role}.port.grpc={port}" for role, port in zip(_ROLES, ports[1::2], strict=True)]
        return [weed(), "server", "-dir=data", "-s3.config=s3.json", *_OPTIONS, *named]

    def start(self) -> None:
        """Start, or start again on the same data, and return when objects can be stored.

        Raises:
            Unreachable: it does not come up in time.
        """
        command = [sys.executable, "-c", _EXEC, str(os.getpid()), *self.command()]
        with (self._folder / "server.log").open("ab") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, pass_fds=(self._lock,)
            )
        self._process = process
        self.wait_ready(lambda: process.poll() is None)

    def wait_ready(self, is_alive: Callable[[], bool]) -> None:
        """Return when the bucket is there and takes objects, or raise when it does not come so far."""
        client = connect(self.address, tries=1)
        end, reason = time.monotonic() + _START_S, "it ended at once"
        while time.monotonic() < end and is_alive():
            try:
                _make_bucket(client, self.address)
            except StoreError as err:
                reason = str(err)
                time.sleep(0.1)
            else:
                client.close()
                return
        raise Unreachable(f"the S3 server did not come up: {reason}; see {self._folder / 'server.log'}")

    def kill(self) -> None:
        """``kill -9``. Idempotent."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End it and let others have the folder. Idempotent."""
        self.kill()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def pause(self) -> None:
        """Stop it without ending it (SIGSTOP)."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused server go on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def _remembered(self) -> _Made:
        path = self._folder / "made.json"
        old = from_json(_Made, path.read_bytes()) if path.exists() else None
        if old is not None and _are_free(old.ports):
            return old
        ports = tuple(free_ports(2 * len(_ROLES)))
        made = _Made(
            ports,
            old.key_id if old else secrets.token_hex(10),
            old.secret if old else secrets.token_urlsafe(30),
        )
        identity = {
            "name": "run",
            "credentials": [{"accessKey": made.key_id, "secretKey": made.secret}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        replace_durably(self._folder / "s3.json", json.dumps({"identities": [identity]}).encode())
        replace_durably(path, to_json(made))
        return made


def address_of(folder: Path) -> S3Address:
    """Where the server of ``folder`` listens, with its credentials.

    Raises:
        ConfigError: there was never one.
    """
    path = folder / "made.json"
    if not path.is_file():
        raise ConfigError(f"{folder} holds no S3 server of a run")
    made = from_json(_Made, path.read_bytes())
    endpoint = f"http://127.0.0.1:{made.ports[2 * _ROLES.index('s3')]}"
    return S3Address(BUCKET, endpoint, "us-east-1", key_id=made.key_id, secret=made.secret)


def _make_bucket(client: Any, address: S3Address) -> None:
    """Make the bucket if there is none; see that objects can be stored and that old ones are found again."""
    bucket = address.bucket
    with explained(address):
        held = [entry["Name"] for entry in client.list_buckets()["Buckets"]]
        if bucket not in held:
            client.create_bucket(Bucket=bucket)
        client.put_object(Bucket=bucket, Key=".ready", Body=b"ready")
    try:  # a restarted server knows its objects before it knows where their bytes are
        with explained(address, ".first"):
            client.get_object(Bucket=bucket, Key=".first")["Body"].read()
    except MissingObject:
        with explained(address):
            client.put_object(Bucket=bucket, Key=".first", Body=b"first")


def _are_free(ports: tuple[int, ...]) -> bool:
    for port in ports:
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            return False
    return True
