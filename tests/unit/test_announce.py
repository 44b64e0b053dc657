"""Entries of the register that come back, and calls that follow their party to another place."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dcr.errors import ConfigError, Conflict, Unreachable
from dcr.refit.following import FollowingCaller
from dcr.transport.announce import Announcement, announce, identity, is_gone
from dcr.transport.peers import Peer, Peers
from dcr.transport.rpc import Client, serve


@pytest.fixture
def peers(tmp_path: Path) -> Peers:
    return Peers(tmp_path / "endpoints")


@pytest.fixture
def alive(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> Iterator[Announcement]:
    monkeypatch.setattr("dcr.transport.announce.LOOK_AGAIN_S", 1000.0)  # here the test looks
    announcement = announce(peers, "p", {}, incarnation="mine")
    yield announcement
    announcement.close()


def found(peers: Peers) -> str:
    entry = peers.find("p")
    return "" if entry is None else entry.incarnation


def test_it_answers_and_says_who_it_is(peers: Peers, alive: Announcement) -> None:
    client = Client(alive.url)
    assert client.call("incarnation", str) == "mine"
    client.close()
    entry = peers.find("p")
    assert entry == Peer("p", alive.url, "mine")
    assert not is_gone(entry)


def test_a_deleted_entry_comes_back(peers: Peers, alive: Announcement, tmp_path: Path) -> None:
    (tmp_path / "endpoints" / "p.json").unlink()
    (tmp_path / "endpoints").rmdir()
    alive.look()
    assert found(peers) == "mine"


def test_a_damaged_entry_is_replaced(peers: Peers, alive: Announcement, tmp_path: Path) -> None:
    (tmp_path / "endpoints" / "p.json").write_text("{")
    alive.look()
    assert found(peers) == "mine"


def test_a_dead_process_does_not_keep_the_entry(peers: Peers, alive: Announcement) -> None:
    other = announce(peers, "p", {}, incarnation="other")
    alive.look()
    assert found(peers) == "other", "a living successor keeps its place"
    other.close()
    alive.look()
    assert found(peers) == "mine"


def test_an_entry_that_is_no_address_is_replaced(peers: Peers, alive: Announcement) -> None:
    peers.publish("p", "http://[", "dead")
    alive.look()
    assert found(peers) == "mine"


def test_a_port_that_somebody_else_has_taken_over_is_no_sign_of_life(
    peers: Peers, alive: Announcement
) -> None:
    for handlers in (identity("another"), {}):
        with serve(handlers) as server:
            peers.publish("p", server.url, "dead")
            alive.look()
            assert found(peers) == "mine"


def test_a_process_that_is_too_busy_to_answer_is_not_gone(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dcr.transport.announce._ANSWER_S", 0.1)
    go_on = threading.Event()

    def incarnation() -> str:
        go_on.wait()
        return "busy"

    with serve({"incarnation": incarnation}) as server:
        assert not is_gone(Peer("p", server.url, "busy"))
        go_on.set()


def test_it_looks_by_itself_until_it_is_closed(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcr.transport.announce.LOOK_AGAIN_S", 0.01)
    announcement = announce(peers, "p", {}, incarnation="mine")
    peers.withdraw("p")
    while not found(peers):
        pass
    announcement.close()
    announcement.close()


def test_it_goes_on_looking_whatever_happens(peers: Peers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcr.transport.announce.LOOK_AGAIN_S", 0.01)
    faults, find = [MemoryError(), RuntimeError("can't start new thread")], Peers.find

    def faulty(self: Peers, name: str) -> Peer | None:
        if faults and threading.current_thread().name == "announce p":
            raise faults.pop()
        return find(self, name)

    monkeypatch.setattr(Peers, "find", faulty)
    announcement = announce(peers, "p", {}, incarnation="mine")
    peers.withdraw("p")
    end = time.monotonic() + 30.0
    while not found(peers):
        assert time.monotonic() < end
    announcement.close()
    assert faults == []


def test_a_bad_name_is_refused(peers: Peers) -> None:
    with pytest.raises(ConfigError, match="peer name"):
        announce(peers, "../p", {})


@dataclass
class Slow:
    """A caller whose party answers when it is told to."""

    answered: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None

    def __call__(
        self, name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> Any:
        self.answered.wait()
        if self.error is not None:
            raise self.error
        return (name, method, result, deadline_s, params)


def test_an_answer_or_an_error_comes_as_it_is(peers: Peers) -> None:
    slow = Slow()
    slow.answered.set()
    calling = FollowingCaller(slow, peers)
    assert calling("p", "m", int, 3.0, {"a": 1}) == ("p", "m", int, 3.0, {"a": 1})
    slow.error = Conflict("replaced")
    with pytest.raises(Conflict, match="replaced"):
        calling("p", "m", int, 3.0, {})


def test_a_call_is_given_up_once_its_party_is_announced_elsewhere(peers: Peers) -> None:
    slow = Slow()
    peers.publish("p", "http://stopped", "a")
    moved = threading.Timer(0.05, peers.publish, ("p", "http://successor", "b"))
    moved.start()
    with pytest.raises(Unreachable, match="p is announced elsewhere"):
        FollowingCaller(slow, peers)("p", "m", int, 1000.0, {})
    slow.answered.set()


def test_a_call_outlasts_a_missing_entry(peers: Peers) -> None:
    """The folder may be deleted: that is no sign of a successor."""
    slow = Slow()
    peers.publish("p", "http://here", "a")
    gone = threading.Timer(0.05, peers.withdraw, ("p",))
    done = threading.Timer(0.6, slow.answered.set)
    gone.start()
    done.start()
    assert FollowingCaller(slow, peers)("p", "m", int, 1000.0, {})[0] == "p"
