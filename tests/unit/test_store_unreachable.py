"""Servers of a control plane that do not answer for now: whoever asked asks again, and nobody gives up."""

import pytest

from dcr.commit.calls import PartiesFailed, silent_in
from dcr.commit.control_plane.etcd import EtcdControlPlane
from dcr.commit.remote import Party
from dcr.config import CommitConfig
from dcr.errors import MissingObject, StoreError, StoreUnreachable, Unreachable
from dcr.model import AttemptId, CommitRecord, ControlState
from dcr.testing.etcd import free_ports
from dcr.transport.rpc import Client, serve
from dcr_recipes.processes.border import is_fatal

RUN = "ab" * 16
STATE = ControlState(RUN, 0, "w", 1, 0, CommitRecord(RUN, 0, AttemptId(0, 0), 1, "w", None, 0, "c", "m", "a"))


def test_an_etcd_that_is_down_is_unreachable_and_a_failed_store() -> None:
    plane = EtcdControlPlane([f"http://127.0.0.1:{free_ports(1)[0]}"], timeout_s=0.5)
    for ask in (lambda: plane.read(RUN), lambda: plane.create(STATE)):
        with pytest.raises(StoreUnreachable) as raised:
            ask()
        assert isinstance(raised.value, StoreError)


def test_who_asks_through_a_coordinator_asks_again() -> None:
    failures = [StoreUnreachable("no etcd node answers"), StoreUnreachable("no etcd node answers")]

    def record() -> int:
        if failures:
            raise failures.pop()
        return 7

    with serve({"record": record}) as server:
        client = Client(server.url)
        with pytest.raises(StoreUnreachable, match="no etcd node answers"):
            client.call("record", int)
        party = Party(
            "coordinator",
            lambda _name, method, result, deadline_s, params: client.call(
                method, result, deadline_s=deadline_s, **params
            ),
            CommitConfig(),
            pause=lambda _: None,
        )
        assert party.patiently("record", int, 10.0) == 7
        client.close()


def test_a_process_that_meets_it_is_started_again() -> None:
    assert not is_fatal(StoreUnreachable("no etcd node answers"))
    assert is_fatal(StoreError("disk full"))
    assert is_fatal(MissingObject("no such object"))


def test_a_party_that_tells_of_it_is_not_silent() -> None:
    failed = PartiesFailed({"a": StoreUnreachable("its store"), "b": Unreachable("no answer")}, began=3.0)
    assert silent_in(failed) == {"b": 3.0}
