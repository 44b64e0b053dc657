"""A server that joined a run can leave at any moment: nothing that hangs or is refused keeps it (P11)."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.engine_controls import Recorded

from dcr.commit.remote import Party
from dcr.errors import Conflict, Unreachable
from dcr.model import GENESIS, LeaseGrant, ReceiverState
from dcr_recipes.compose import compose
from dcr_recipes.config import CommitPlaneConfig
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes import joined_server

NAME = "server-0"
SOON_S = 15.0


class Server(Recorded):
    """An engine with a front of its own, which notes in ``events`` what it is lent."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self._events = events
        self._lending = threading.Lock()

    def lend(self, left_s: Callable[[], float]) -> None:
        with self._lending:
            self._events.append("lent" if left_s() > 0 else "lent nothing")


class Receiver:
    """It holds what is committed first."""

    def __init__(self) -> None:
        self.name, self.incarnation, self.base, self.lost = NAME, "i1", GENESIS, threading.Event()

    def examine(self) -> int:
        return 0


class Run:
    """A coordinator that admits, grants and lets go; tests replace what it ``answers``."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.heard = {method: threading.Event() for method in ("record", "admit", "renew", "leave")}
        self.answers: dict[str, Callable[[], object]] = {
            "record": lambda: SimpleNamespace(version=3),
            "admit": lambda: SimpleNamespace(state=ReceiverState.CLEAN, version=3),
            "renew": lambda: LeaseGrant(1.5),
            "leave": lambda: (),
        }
        self.is_over = threading.Event()
        self.receiver, self.server = Receiver(), Server(self.events)
        self.config = CommitPlaneConfig()
        self.stop = threading.Event()

    def __call__(
        self, name: str, method: str, result: type[Any], deadline_s: float, params: dict[str, object]
    ) -> Any:
        self.events.append(method)
        self.heard[method].set()
        return self.answers[method]()

    def hang(self) -> object:
        self.is_over.wait()
        raise Unreachable("it was stopped")

    def refuse(self) -> object:
        raise Conflict("not now")

    def wait_heard(self, method: str) -> None:
        assert self.heard[method].wait(SOON_S)
        self.heard[method].clear()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """One whose parts around the coordinator do nothing."""
    run = Run()
    party = Party("coordinator", run, run.config)
    parts: dict[str, object] = {
        "site": lambda _: SimpleNamespace(coordinator=lambda _: party),
        "await_record": lambda *_, **__: party.now("record", object, 1.0),
        "Workers": lambda *_, **__: None,
        "receiver_of": lambda *_: lambda _: run.receiver,
        "Pump": lambda *_, **__: SimpleNamespace(handlers=dict),
        "announce": lambda *_: None,
    }
    for name, part in parts.items():
        monkeypatch.setattr(joined_server, name, part)
    yield run
    run.is_over.set()


@pytest.fixture
def taking_part(run: Run, tmp_path: Path) -> Iterator[threading.Thread]:
    """Not begun yet; it must return once ``run.stop`` is set."""
    config = compose(["model=tiny"])
    config.commit = run.config
    args = (RunFolder(tmp_path), config, NAME, run.server, run.stop)
    thread = threading.Thread(target=joined_server.take_part, args=args, daemon=True)
    yield thread
    assert not thread.is_alive()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_one_that_is_stopped_before_it_begins_asks_nobody(run: Run, taking_part: threading.Thread) -> None:
    run.stop.set()
    taking_part.start()
    taking_part.join(SOON_S)
    assert run.events == []


def test_it_leaves_while_it_waits_for_the_run(run: Run, taking_part: threading.Thread) -> None:
    run.answers["record"] = run.hang
    taking_part.start()
    run.wait_heard("record")
    run.stop.set()
    taking_part.join(SOON_S)
    assert run.events == ["record"]


@pytest.mark.parametrize("leaving", ["heard", "refused"])
@pytest.mark.parametrize("admission", ["hangs", "is refused"])
def test_it_leaves_before_it_is_admitted(
    run: Run, taking_part: threading.Thread, admission: str, leaving: str
) -> None:
    run.answers["admit"] = run.hang if admission == "hangs" else run.refuse
    if leaving == "refused":
        run.answers["leave"] = run.refuse
    taking_part.start()
    run.wait_heard("admit")
    run.stop.set()
    taking_part.join(SOON_S)
    assert run.events[-1] == "leave"
    assert "lent" not in run.events


@pytest.mark.parametrize("admission", ["hangs", "is refused"])
@pytest.mark.parametrize("reason", ["lost", "not granted"])
def test_it_leaves_while_it_asks_to_be_admitted_again(
    run: Run, taking_part: threading.Thread, reason: str, admission: str
) -> None:
    taking_part.start()
    run.wait_heard("admit")
    until(lambda: "lent" in run.events)
    run.answers["admit"] = run.hang if admission == "hangs" else run.refuse
    if reason == "lost":
        run.receiver.lost.set()
    else:
        run.answers["renew"] = run.refuse
    run.wait_heard("admit")
    run.stop.set()
    taking_part.join(SOON_S)
    left = run.events.index("leave")
    lent = [event for event in run.events[:left] if event.startswith("lent")]
    assert lent[-1] == "lent nothing", "before the run may go on without it"
    assert not {"lent", "admit"} & set(run.events[left:])


def test_without_leases_its_engine_is_paused_and_the_run_told(
    run: Run, taking_part: threading.Thread
) -> None:
    run.config.lease_s = 0.0
    taking_part.start()
    run.wait_heard("admit")
    run.stop.set()
    taking_part.join(SOON_S)
    assert run.server.told == ["pause"]
    assert run.events[-1] == "leave"
