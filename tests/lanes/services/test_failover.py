"""Coordinators killed and stopped over real etcd clusters, and a whole recipe run of which two are killed."""

import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.integration.failover_runs import (
    Fleet,
    fleet,
    killed_while_the_candidate_is_uncommitted,
    once_at,
    stopped_while_the_candidate_is_uncommitted,
)
from tests.integration.kill_runs import Finished, processes_of, run

from dcr.refit import ControlSpec
from dcr.testing.etcd import EtcdCluster

STEPS = 5
KILLS = (
    "coordinator:coordinator.construct.after:2:1",
    "coordinator-1:coordinator.construct.after:2:1",
)
"""Whichever of the two is active dies in its second transition, with payloads published and not committed;
so does its successor, unless that is the one that was restarted."""


@pytest.fixture
def on_etcd(three_nodes: EtcdCluster, tmp_path: Path) -> Iterator[Fleet]:
    control = ControlSpec("etcd", endpoints=three_nodes.endpoints)
    with fleet(tmp_path, control, secrets.token_hex(16)) as made:
        yield made


@pytest.mark.parametrize(
    "point",
    ["owner.publish.before", "owner.close.after", "receiver.open_apply.after", "receiver.finish.after"],
)
def test_killed(on_etcd: Fleet, point: str) -> None:
    killed_while_the_candidate_is_uncommitted(on_etcd, point)


@pytest.mark.parametrize("point", ["owner.publish.before", "receiver.finish.before"])
def test_stopped(on_etcd: Fleet, point: str) -> None:
    stopped_while_the_candidate_is_uncommitted(on_etcd, point)


def test_the_leader_of_the_cluster_dies_in_mid_transition(on_etcd: Fleet, three_nodes: EtcdCluster) -> None:
    """The coordinator waits for the election, commits, and remains the active one."""
    on_etcd.open()
    killed: list[int] = []

    def kill_leader() -> None:
        killed.append(three_nodes.leader())
        three_nodes.kill(killed[0])

    with once_at("receiver.finish.before", kill_leader):
        report = on_etcd.step()
    three_nodes.start(killed[0])
    three_nodes.leader()
    assert (report.record.version, on_etcd.gate.version, on_etcd.differing_bits()) == (1, 1, 0)
    assert on_etcd.step().record.version == 2


def test_a_run_whose_coordinators_die_is_the_undisturbed_run(
    three_nodes: EtcdCluster, tmp_path: Path
) -> None:
    """Two coordinators on etcd, each killed while owners hold a candidate that nobody committed (P10)."""
    words = (
        f"steps={STEPS}", "commit=etcd", f"commit.endpoints=[{','.join(three_nodes.endpoints)}]",
        "commit.coordinators=2", "commit.leader_lease_s=2",
    )  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        calm_run = pool.submit(run, tmp_path / "calm", f"steps={STEPS}")
        done = run(tmp_path / "killed", *words, kills=KILLS)
        calm = calm_run.result()
    num_killed = len(KILLS) - len(done.unfired)
    assert num_killed >= 1
    assert done.outcome == calm.outcome
    assert (done.summary["differing_bits"], done.summary["final_version"]) == (0, STEPS)
    assert _roles(done, "coordinator") + _roles(done, "coordinator-1") == num_killed + 1
    assert sum(manifest.overwrite_only for manifest in done.manifests()) == num_killed
    end = time.monotonic() + 10
    while processes_of(done.folder.root):
        assert time.monotonic() < end
        time.sleep(0.05)


def _roles(done: Finished, name: str) -> int:
    """How often ``name`` became the active one."""
    return done.folder.log(name).read_text().count("is the active coordinator")
