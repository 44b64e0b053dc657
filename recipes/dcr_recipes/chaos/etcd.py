"""The control plane's servers under fault: etcd nodes of our own, each behind a proxy in this process."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from dcr.errors import Unreachable
from dcr.testing.etcd import EtcdCluster
from dcr_recipes.links.proxy import Proxy


class ProxiedEtcd:
    """A cluster whose clients go through ``endpoints``; ``direct`` are the nodes themselves, to look on."""

    def __init__(self, cluster: EtcdCluster) -> None:
        self._cluster = cluster
        self._proxies = [Proxy(*_address(url)) for url in cluster.endpoints]
        self._down: set[int] = set()

    @property
    def endpoints(self) -> list[str]:
        """What the run's processes are told."""
        return [proxy.url for proxy in self._proxies]

    @property
    def direct(self) -> tuple[str, ...]:
        """The nodes, past the proxies."""
        return self._cluster.endpoints

    def kill_leader(self) -> int | None:
        """SIGKILL the leader and return its node; None if a node is down already, or none leads now."""
        if self._down:
            return None
        try:
            node = self._cluster.leader(wait_s=0.0)
        except Unreachable:
            return None
        self._cluster.kill(node)
        self._down.add(node)
        return node

    def start(self, node: int) -> None:
        """Start a killed node again on its own data."""
        self._cluster.start(node)
        self._down.discard(node)

    def cut(self, victim: int, seconds: float) -> str:
        """Cut one node's clients off, or with a fourth draw all of them; returns whom."""
        node = victim % (len(self._proxies) + 1)
        chosen = self._proxies if node == len(self._proxies) else [self._proxies[node]]
        for proxy in chosen:
            proxy.cut(seconds)
        return "all nodes" if len(chosen) > 1 else f"node {node}"

    def lose_answers(self, seconds: float) -> None:
        """Let every node do what it is asked and nobody hear of it."""
        for proxy in self._proxies:
            proxy.lose_answers(seconds)

    def close(self) -> None:
        """End the proxies."""
        for proxy in self._proxies:
            proxy.close()


@contextmanager
def proxied_etcd(folder: Path, num_nodes: int) -> Iterator[ProxiedEtcd]:
    """Servers with their data and logs under ``folder``, for the time of the block.

    Raises:
        ConfigError: etcd is not installed.
        Unreachable: the cluster does not elect a leader.
    """
    folder.mkdir(parents=True)
    cluster = EtcdCluster(folder, num_nodes, dies_with_parent=True)
    try:
        proxied = ProxiedEtcd(cluster)
        try:
            yield proxied
        finally:
            proxied.close()
    finally:
        cluster.stop()


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port
