"""Servers for all tests of a module: S3, etcd of one and three nodes; a bucket's corner for each test."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dcr.model import new_nonce
from dcr.testing.etcd import EtcdCluster
from dcr.testing.s3_faults import FaultyProxy
from dcr.testing.s3_server import S3Server
from dcr.transport.s3_client import S3Address


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    made = S3Server(tmp_path_factory.mktemp("s3"))
    made.start()
    yield made
    made.close()


@pytest.fixture
def address(server: S3Server) -> S3Address:
    return replace(server.address, prefix=new_nonce())


@pytest.fixture
def proxy(server: S3Server) -> Iterator[FaultyProxy]:
    made = FaultyProxy(int(server.address.endpoint.rpartition(":")[2]))
    yield made
    made.close()


@pytest.fixture
def through(address: S3Address, proxy: FaultyProxy) -> S3Address:
    """The same corner by way of the proxy."""
    return replace(address, endpoint=proxy.endpoint)


@pytest.fixture(scope="module")
def one_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd1"), 1)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def three_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path_factory.mktemp("etcd3"), 3)
    yield cluster
    cluster.stop()
