"""A real etcd on the loopback address for tests: one node or three, which can be killed and started again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx

from dcr.errors import ConfigError, Unreachable

_START_S = 30.0


class EtcdCluster:
    """``num_nodes`` etcd processes with their data under ``folder``; ``stop`` ends them.

    With ``dies_with_parent`` the thread that starts a node takes it along, however it ends (Linux).

    Raises:
        ConfigError: etcd is not installed.
        Unreachable: the cluster does not elect a leader.
    """

    def __init__(self, folder: Path, num_nodes: int, *, dies_with_parent: bool = False) -> None:
        if shutil.which("etcd") is None:
            raise ConfigError("etcd is not installed; run scripts/install_services.sh")
        self._folder = folder
        # a program in front of etcd that becomes it: what a fork of many threads may not do itself
        self._prefix = ["setpriv", "--pdeathsig", "KILL"] if dies_with_parent else []
        ports = free_ports(2 * num_nodes)
        self.endpoints = tuple(f"http://127.0.0.1:{port}" for port in ports[:num_nodes])
        self._peers = tuple(f"http://127.0.0.1:{port}" for port in ports[num_nodes:])
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for node in range(num_nodes):
            self.start(node)
        self.leader()

    def start(self, node: int) -> None:
        """Start or restart ``node`` on its own data."""
        cluster = ",".join(f"n{i}={peer}" for i, peer in enumerate(self._peers))
        client, peer = self.endpoints[node], self._peers[node]
        command = [
            *self._prefix, "etcd", "--name", f"n{node}", "--data-dir", str(self._folder / f"n{node}"),
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", cluster, "--initial-cluster-state", "new", "--log-level", "error",
        ]  # fmt: skip
        with (self._folder / f"n{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, node: int) -> None:
        """``kill -9``."""
        process = self._processes[node]
        process.send_signal(signal.SIGKILL)
        process.wait()

    def pause(self, node: int) -> None:
        """Stop ``node`` without ending it (SIGSTOP)."""
        os.kill(self._processes[node].pid, signal.SIGSTOP)

    def resume(self, node: int) -> None:
        """Let a paused node go on."""
        os.kill(self._processes[node].pid, signal.SIGCONT)

    def leader(self, wait_s: float = _START_S) -> int:
        """The node that leads, waiting for an election if there must be one.

        Raises:
            Unreachable: there is none after ``wait_s``.
        """
        end = time.monotonic() + wait_s
        while True:
            for node, endpoint in enumerate(self.endpoints):
                if self._leads(endpoint):
                    return node
            if time.monotonic() >= end:
                raise Unreachable(f"etcd elected no leader within {wait_s} s; see the logs in {self._folder}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End every node."""
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _leads(self, endpoint: str) -> bool:
        try:
            answer = httpx.post(f"{endpoint}/v3/maintenance/status", json={}, timeout=2.0).json()
        except (httpx.HTTPError, ValueError):
            return False
        leader = answer.get("leader", "0")
        return leader not in ("0", 0) and answer.get("header", {}).get("member_id") == leader


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()
