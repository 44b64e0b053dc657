"""Processes find one another through files that are replaced as a whole."""

import threading
from pathlib import Path

import pytest

from dcr.errors import ConfigError, PayloadError, StoreError
from dcr.transport.peers import Peer, Peers


def test_publish_find_withdraw(tmp_path: Path) -> None:
    peers = Peers(tmp_path / "run" / "endpoints")
    assert peers.find("owner-0") is None
    assert peers.names() == []
    peers.withdraw("owner-0")
    peers.publish("owner-0", "http://127.0.0.1:1", "a")
    peers.publish("coordinator", "http://127.0.0.1:2", "b")
    assert peers.names() == ["coordinator", "owner-0"]
    assert Peers(tmp_path / "run" / "endpoints").find("owner-0") == Peer("owner-0", "http://127.0.0.1:1", "a")
    peers.withdraw("owner-0")
    assert peers.find("owner-0") is None
    assert peers.names() == ["coordinator"]


def test_a_restarted_process_replaces_its_entry(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.publish("runtime-1", "http://127.0.0.1:1", "old")
    peers.publish("runtime-1", "http://127.0.0.1:2", "new")
    assert peers.find("runtime-1") == Peer("runtime-1", "http://127.0.0.1:2", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["runtime-1.json"]


def test_readers_never_see_a_part(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    peers.publish("p", "http://0", "0")
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            peers.publish("p", f"http://{number}" + "x" * (number % 1000), str(number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(300):
            peer = peers.find("p")
            assert peer is not None
            assert peer.url.rstrip("x") == f"http://{peer.incarnation}"
            assert peers.names() == ["p"]
    finally:
        stop.set()
        writer.join()


def test_what_a_crashed_writer_leaves_is_ignored(tmp_path: Path) -> None:
    peers = Peers(tmp_path)
    (tmp_path / ".p.0123.tmp").write_bytes(b"{")
    (tmp_path / "notes.txt").write_bytes(b"")
    assert peers.names() == []


@pytest.mark.parametrize("name", ["", "../p", "a/b", ".hidden", "a.json", "a b", "a\n"])
def test_names_stay_inside_the_folder(tmp_path: Path, name: str) -> None:
    peers = Peers(tmp_path)
    with pytest.raises(ConfigError, match="peer name"):
        peers.publish(name, "u", "i")
    with pytest.raises(ConfigError, match="peer name"):
        peers.find(name)
    with pytest.raises(ConfigError, match="peer name"):
        peers.withdraw(name)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"name":"q","url":"u","incarnation":"i"}'])
def test_files_that_are_no_announcements(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "p.json").write_bytes(data)
    with pytest.raises(PayloadError):
        Peers(tmp_path).find("p")


def test_a_folder_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    peers = Peers(tmp_path / "file")
    with pytest.raises(StoreError, match="cannot announce 'p'"):
        peers.publish("p", "u", "i")
    with pytest.raises(StoreError):
        peers.find("p")
