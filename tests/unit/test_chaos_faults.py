"""Faults that are carried out: on real processes and connections, small ones."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dcr.errors import Unreachable
from dcr.transport.rpc import Client, serve
from dcr_recipes.chaos.copies import DenseCopies
from dcr_recipes.chaos.cuts import CUT, is_installed
from dcr_recipes.chaos.injector import Injector
from dcr_recipes.chaos.schedule import Kind, Planned
from dcr_recipes.layout import RunFolder
from dcr_recipes.links.proxy import Proxy

SERVER = """
import sys, time
from dcr.transport.rpc import serve
from dcr_recipes.chaos.cuts import install
if float(sys.argv[1]):
    install(float(sys.argv[1]))
def slow(seconds: float) -> str:
    time.sleep(seconds)
    return "answered"
print(serve({"slow": slow}).url, flush=True)
while True:
    time.sleep(1)
"""


@contextmanager
def _serving(cut_s: float) -> Iterator[tuple["subprocess.Popen[str]", Client]]:
    child = subprocess.Popen([sys.executable, "-c", SERVER, str(cut_s)], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        client = Client(child.stdout.readline().strip())
        yield child, client
        client.close()
    finally:
        child.kill()
        child.communicate()


def _call(client: Client, seconds: float) -> str:
    try:
        return client.call("slow", str, seconds=seconds, deadline_s=20.0)
    except Unreachable:
        return "cut"


def _until(reached: Callable[[], bool], deadline_s: float = 20.0) -> None:
    end = time.monotonic() + deadline_s
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_that_was_told_to_cuts_its_connections_for_a_while() -> None:
    with _serving(0.5) as (child, client):
        assert _call(client, 0.0) == "answered"
        assert is_installed(child.pid)
        answers: list[str] = []
        waiting = threading.Thread(target=lambda: answers.append(_call(client, 15.0)))
        waiting.start()
        time.sleep(0.2)
        child.send_signal(CUT)
        waiting.join(timeout=10.0)
        assert answers == ["cut"], "a call in flight ends with its connection"
        _until(lambda: _call(client, 0.0) == "answered")
        assert child.poll() is None


def test_other_processes_do_not_listen_to_the_signal() -> None:
    with _serving(0.0) as (child, client):
        assert _call(client, 0.0) == "answered"
        assert not is_installed(child.pid)
    assert not is_installed(2**22 + 1), "nobody"


def test_a_proxy_forwards_cuts_and_loses_answers() -> None:
    heard: list[int] = []

    def hear(number: int) -> int:
        heard.append(number)
        return number + 1

    def ask(number: int) -> int:
        client = Client(proxy.url)
        try:
            return client.call("hear", int, number=number)
        except Unreachable:
            return -1
        finally:
            client.close()

    with serve({"hear": hear}) as server:
        proxy = Proxy("127.0.0.1", int(server.url.rpartition(":")[2]))
        assert ask(1) == 2
        proxy.lose_answers(0.3)
        assert ask(2) == -1
        assert heard == [1, 2], "the request itself got through"
        _until(lambda: ask(3) == 4)
        proxy.cut(0.3)
        assert ask(4) == -1
        assert 4 not in heard
        _until(lambda: ask(5) == 6)
        proxy.close()
        assert ask(6) == -1


def test_a_proxy_ends_connections_that_are_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy("127.0.0.1", listener.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port)) as client:
            server, _ = listener.accept()
            with server:
                client.sendall(b"hello")
                assert server.recv(5) == b"hello"
                proxy.cut(0.0)
                assert (client.recv(1), server.recv(1)) == (b"", b"")
        proxy.close()


class Children:
    def __init__(self, *names: str) -> None:
        self.processes = {name: subprocess.Popen(["sleep", "100"]) for name in names}

    def pids(self) -> dict[str, int]:
        return {name: child.pid for name, child in self.processes.items() if child.poll() is None}

    def state(self, name: str) -> str:
        stat = Path(f"/proc/{self.processes[name].pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0]


@pytest.fixture
def children() -> Iterator[Children]:
    made = Children("coordinator-0", "owner-0", "owner-1", "runtime-0")
    yield made
    for child in made.processes.values():
        child.kill()
        child.wait()


def _planned(number: int, kind: Kind, *, lasts_s: float = 0.0, in_refit: bool = False) -> Planned:
    return Planned(number, kind, victim=5, pause_s=1.0, lasts_s=lasts_s, in_refit=in_refit, delay_s=0.5)


class Bench:
    """An injector with a clock and a trainer of our own."""

    def __init__(self, children: Children, *plan: Planned) -> None:
        self.now, self.refitting = 0.0, False
        self.injector = Injector(
            iter(plan), children, None, lambda: self.now, lambda: self.refitting, cut_s=1.0, most_open=2
        )

    def tick(self, now: float, num_open: int = 0) -> str:
        self.now = now
        struck = self.injector.tick(num_open)
        return "" if struck is None else struck.victim


def test_a_fault_waits_its_pause_and_for_earlier_ones(children: Children) -> None:
    bench = Bench(children, _planned(1, Kind.KILL_TRAINER), _planned(2, Kind.KILL_RUNTIME))
    assert bench.tick(0.0) == bench.tick(0.9) == bench.tick(1.1, num_open=2) == ""
    assert bench.tick(1.2) == "owner-1"
    assert children.processes["owner-1"].wait(5) == -9
    assert bench.tick(1.3) == ""
    assert bench.tick(2.4) == "runtime-0"


def test_a_stopped_process_goes_on_when_its_time_is_over(children: Children) -> None:
    bench = Bench(children, _planned(1, Kind.STOP_RUNTIME, lasts_s=3.0), _planned(2, Kind.KILL_TRAINER))
    bench.tick(0.0)
    assert bench.tick(1.0) == "runtime-0"
    _until(lambda: children.state("runtime-0") == "T")
    bench.tick(1.1)
    assert children.state("runtime-0") == "T"
    bench.now = 4.0
    bench.injector.end_due()
    _until(lambda: children.state("runtime-0") == "S")


def test_one_aims_at_a_refit(children: Children) -> None:
    bench = Bench(children, _planned(1, Kind.KILL_RUNTIME, in_refit=True), _planned(2, Kind.KILL_TRAINER))
    assert bench.tick(0.0) == bench.tick(5.0) == ""
    bench.refitting = True
    assert bench.tick(6.0) == bench.tick(6.4) == ""
    assert bench.tick(6.5) == "runtime-0"


def test_a_victim_that_is_not_there_or_cannot_be_cut_is_skipped(children: Children) -> None:
    children.processes["runtime-0"].kill()
    children.processes["runtime-0"].wait()
    plan = (_planned(1, Kind.KILL_RUNTIME), _planned(2, Kind.CUT_COORDINATOR), _planned(3, Kind.KILL_TRAINER))
    bench = Bench(children, *plan)
    bench.tick(0.0)
    assert bench.tick(2.0) == bench.tick(2.0) == bench.tick(4.0) == ""
    assert bench.injector.skipped == 2
    assert children.state("coordinator-0") == "S", "a signal that it does not handle would have ended it"


def test_dense_files_outlive_the_trainers_own(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.dense.mkdir()
    copies = DenseCopies(run, tmp_path / "copies")
    path = run.dense / "version-00000003.safetensors"
    path.write_text("first")
    copies.look()
    again = path.with_suffix(".tmp")
    again.write_text("again")
    again.replace(path)
    copies.look()
    path.unlink()
    copies.look()
    kept = copies.path(3)
    assert kept is not None
    assert kept.read_text() == "again"
    assert copies.path(4) is None
    copies.remove()
    assert not (tmp_path / "copies").exists()
