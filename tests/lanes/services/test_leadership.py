"""Who coordinates, decided by real etcd clusters of one and three nodes, one of them killed."""

import time
from functools import partial
from pathlib import Path

import pytest

from dcr.commit.leadership.etcd import EtcdLeadership
from dcr.errors import ConfigError, StoreError
from dcr.testing.etcd import EtcdCluster, free_ports
from dcr.testing.leadership_suite import RUN, LeadershipContract, Race, SharedLeadershipContract

_LEASE_S = 2.0
"""etcd's shortest, by its election time-out."""


def race_at(cluster: EtcdCluster, folder: Path) -> Race:
    join = partial(EtcdLeadership, cluster.endpoints, lease_s=_LEASE_S, prefix=f"/{folder.name}")
    return Race(join, _LEASE_S, time.sleep)


class TestOneNode(LeadershipContract, SharedLeadershipContract):
    @pytest.fixture
    def race(self, one_node: EtcdCluster, tmp_path: Path) -> Race:
        return race_at(one_node, tmp_path)


class TestThreeNodes(LeadershipContract, SharedLeadershipContract):
    @pytest.fixture
    def race(self, three_nodes: EtcdCluster, tmp_path: Path) -> Race:
        return race_at(three_nodes, tmp_path)


def test_it_outlives_the_leader_of_the_cluster(three_nodes: EtcdCluster, tmp_path: Path) -> None:
    """``kill -9`` of the node that leads etcd: whoever coordinates goes on to do so, under its lease."""
    race = race_at(three_nodes, tmp_path)
    first, second = race.join(RUN, "a"), race.join(RUN, "b")
    assert first.campaign()
    killed = three_nodes.leader()
    three_nodes.kill(killed)
    end, beats = time.monotonic() + 3 * _LEASE_S, 0
    while time.monotonic() < end:
        try:
            assert first.campaign(), "its lease ended with the node"
            beats += 1
            assert not second.campaign()
        except StoreError:
            continue  # while the others elect
        time.sleep(_LEASE_S / 8)
    three_nodes.start(killed)
    three_nodes.leader()
    assert beats > 0
    assert second.holder() == "a"


def test_nobody_listening_is_a_store_error() -> None:
    leadership = EtcdLeadership([f"http://127.0.0.1:{free_ports(1)[0]}"], RUN, "a", lease_s=_LEASE_S)
    for call in (leadership.campaign, leadership.resign, leadership.holder):
        with pytest.raises(StoreError, match="no etcd node answers"):
            call()


def test_endpoints_are_checked() -> None:
    with pytest.raises(ConfigError, match="etcd"):
        EtcdLeadership(["localhost:2379"], RUN, "a", lease_s=_LEASE_S)
