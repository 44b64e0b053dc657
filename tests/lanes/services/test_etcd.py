"""The etcd control plane on real clusters of one and three nodes (issue: kill the leader in mid-commit)."""

import logging
import threading
from functools import partial
from pathlib import Path

import pytest
from tests.lanes.services.writers import Writers

from dcr.commit.control_plane.etcd import EtcdControlPlane
from dcr.commit.transitions import take_over
from dcr.errors import ConfigError, OutcomeUnknown, StoreError
from dcr.model import new_nonce
from dcr.testing.claims import claim, resolve
from dcr.testing.control_plane_suite import (
    RUN,
    OpenPlane,
    SharedControlPlaneContract,
    first_state,
)
from dcr.testing.etcd import EtcdCluster, free_ports

logger = logging.getLogger(__name__)
_CLAIMS = 125
_WRITERS = 4


class TestOneNode(SharedControlPlaneContract):
    @pytest.fixture
    def open_plane(self, one_node: EtcdCluster, tmp_path: Path) -> OpenPlane:
        return partial(EtcdControlPlane, one_node.endpoints, prefix=f"/{tmp_path.name}")


class TestThreeNodes(SharedControlPlaneContract):
    @pytest.fixture
    def open_plane(self, three_nodes: EtcdCluster, tmp_path: Path) -> OpenPlane:
        return partial(EtcdControlPlane, three_nodes.endpoints, prefix=f"/{tmp_path.name}")


def test_a_killed_leader_loses_and_duplicates_nothing(three_nodes: EtcdCluster, tmp_path: Path) -> None:
    """Four processes, 500 commits, ``kill -9`` of the leader in the midst of them."""
    open_plane = partial(EtcdControlPlane, three_nodes.endpoints, prefix=f"/{tmp_path.name}", timeout_s=2.0)
    writers = Writers(open_plane, num_writers=_WRITERS, num_claims=_CLAIMS)
    won = writers.first(10)
    killed = three_nodes.leader()
    three_nodes.kill(killed)
    won += writers.finish()
    three_nodes.start(killed)
    three_nodes.leader()
    landed = sum(how == "landed" for _, how in won)
    logger.info("%d commits, %d of unknown outcome found to have landed", len(won), landed)
    assert len(won) == _WRITERS * _CLAIMS
    writers.check(won)


def test_a_stopped_node_makes_the_outcome_unknown(one_node: EtcdCluster, tmp_path: Path) -> None:
    """The request was sent and no answer came: it lands when the node goes on, so it was no failure."""
    plane = EtcdControlPlane(one_node.endpoints, prefix=f"/{tmp_path.name}", timeout_s=0.5)
    state = first_state()
    plane.create(state)
    wanted = take_over(state, new_nonce())
    one_node.pause(0)
    try:
        with pytest.raises(OutcomeUnknown):
            plane.compare_and_set(state, wanted)
    finally:
        one_node.resume(0)
    assert resolve(plane, wanted) in (True, False)
    assert plane.read(RUN).revision >= 1


def test_without_a_majority_nothing_is_written(tmp_path: Path) -> None:
    """A lone survivor refuses or cannot say; the value stays what it was once the others are back."""
    cluster = EtcdCluster(tmp_path, 3)
    try:
        plane = EtcdControlPlane(cluster.endpoints, timeout_s=2.0)
        state = first_state()
        plane.create(state)
        leader = cluster.leader()
        others = (leader, (leader + 1) % 3)
        for node in others:
            cluster.kill(node)
        with pytest.raises((StoreError, OutcomeUnknown)):
            plane.compare_and_set(state, take_over(state, new_nonce()))
        with pytest.raises(StoreError, match="majority"):
            plane.read(RUN)
        for node in others:
            cluster.start(node)
        cluster.leader()
        assert plane.read(RUN).revision in (0, 1)
    finally:
        cluster.stop()


def test_nobody_listening_is_a_store_error() -> None:
    plane = EtcdControlPlane([f"http://127.0.0.1:{free_ports(1)[0]}"])
    with pytest.raises(StoreError, match="no etcd node answers"):
        plane.create(first_state())


@pytest.mark.parametrize("endpoints", [[], ["localhost:2379"]])
def test_endpoints_are_checked(endpoints: list[str]) -> None:
    with pytest.raises(ConfigError, match="etcd"):
        EtcdControlPlane(endpoints)


def test_two_threads_share_one_plane(one_node: EtcdCluster, tmp_path: Path) -> None:
    plane = EtcdControlPlane(one_node.endpoints, prefix=f"/{tmp_path.name}")
    plane.create(first_state())
    won: list[int] = []
    threads = [threading.Thread(target=lambda: won.append(claim(plane, RUN)[0])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, 9))
