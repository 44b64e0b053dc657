"""What every Leadership must do; each implementation's test subclasses this (DESIGN R17, P10)."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeAlias

import pytest

from dcr.commit.leadership.base import Leadership
from dcr.errors import StoreUnreachable

Join: TypeAlias = Callable[[str, str], Leadership]
"""(run, candidate's name) -> a handle of its own."""
RUN = "0" * 32
OTHER_RUN = "1" * 32
_PATIENCE_LEASES = 20


@dataclass(frozen=True, slots=True)
class Race:
    """How to join, how long a lease is, and how to let time pass for all candidates."""

    join: Join
    lease_s: float
    wait: Callable[[float], None]

    def until_leads(self, candidate: Leadership) -> None:
        """Have ``candidate`` campaign until it leads; a store that is away is asked again."""
        for _ in range(4 * _PATIENCE_LEASES):
            with suppress(StoreUnreachable):
                if candidate.campaign():
                    return
            self.wait(self.lease_s / 4)
        pytest.fail(f"it does not lead after {_PATIENCE_LEASES} leases; {candidate.holder()} does")


class LeadershipContract:
    """A subclass defines the fixture ``race``."""

    def test_one_leads_and_is_named(self, race: Race) -> None:
        """Nobody, then the first who asks."""
        first, second = race.join(RUN, "a"), race.join(RUN, "b")
        assert second.holder() == ""
        assert first.campaign()
        assert not second.campaign()
        assert (first.holder(), second.holder()) == ("a", "a")

    def test_who_keeps_on_remains(self, race: Race) -> None:
        """Also for longer than a lease, and whoever else wants it."""
        first, second = race.join(RUN, "a"), race.join(RUN, "b")
        for _ in range(8):
            assert first.campaign()
            assert not second.campaign()
            race.wait(race.lease_s / 4)

    def test_who_falls_silent_is_replaced_and_told_so(self, race: Race) -> None:
        """It neither takes the place back nor disturbs its successor by resigning."""
        silent, second = race.join(RUN, "a"), race.join(RUN, "b")
        assert silent.campaign()
        race.until_leads(second)
        assert not silent.campaign()
        silent.resign()
        assert second.campaign()
        assert silent.holder() == "b"

    def test_nobody_is_replaced_before_its_lease(self, race: Race) -> None:
        """One look by a newcomer is not enough, however late it comes."""
        first = race.join(RUN, "a")
        assert first.campaign()
        race.wait(race.lease_s / 2)
        assert first.campaign()
        race.wait(race.lease_s / 2)
        assert not race.join(RUN, "b").campaign()

    def test_who_resigns_is_followed_at_once(self, race: Race) -> None:
        """And may campaign again."""
        first, second = race.join(RUN, "a"), race.join(RUN, "b")
        assert first.campaign()
        second.resign()
        assert not second.campaign()
        first.resign()
        first.resign()
        assert second.campaign()
        assert not first.campaign()
        second.resign()
        assert first.campaign()

    def test_runs_do_not_touch_each_other(self, race: Race) -> None:
        """Two runs may share a control plane."""
        assert race.join(RUN, "a").campaign()
        other = race.join(OTHER_RUN, "b")
        assert other.campaign()
        other.resign()
        assert race.join(RUN, "c").holder() == "a"

    def test_one_of_many_wins(self, race: Race) -> None:
        """At the same moment."""
        won: list[str] = []

        def work(name: str) -> None:
            if race.join(RUN, name).campaign():
                won.append(name)

        threads = [threading.Thread(target=work, args=(str(number),)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [race.join(RUN, "x").holder()] == won


class SharedLeadershipContract:
    """Beside it where processes share one place; ``race.join`` must be picklable, ``race.wait`` real."""

    def test_a_name_that_died_comes_back_at_once(self, race: Race) -> None:
        """A restarted process need not wait for its own lease."""
        with _Other(race, "a") as other:
            other.until(leads=True)
            other.kill()
            assert race.join(RUN, "a").campaign()
            assert not race.join(RUN, "b").campaign()

    def test_a_killed_holder_is_replaced(self, race: Race) -> None:
        """SIGKILL."""
        with _Other(race, "a") as other:
            other.until(leads=True)
            second = race.join(RUN, "b")
            assert not second.campaign()
            other.kill()
            race.until_leads(second)

    def test_a_stopped_holder_is_replaced_and_told_so_when_it_wakes(self, race: Race) -> None:
        """SIGSTOP, and SIGCONT once another one leads."""
        with _Other(race, "a") as other:
            other.until(leads=True)
            second = race.join(RUN, "b")
            other.send(signal.SIGSTOP)
            race.until_leads(second)
            other.send(signal.SIGCONT)
            other.until(leads=False)
            assert second.campaign()


class _Other:
    """Another process that campaigns until it is ended."""

    def __init__(self, race: Race, name: str) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._seen, told = spawn.Pipe(duplex=False)
        self._process = spawn.Process(target=keep_on, args=(race.join, name, race.lease_s / 4, told))
        self._process.start()
        told.close()

    def until(self, *, leads: bool) -> None:
        """Wait until it has last said so."""
        while self._seen.recv() is not leads:
            pass

    def send(self, number: signal.Signals) -> None:
        """Stop it, or let it go on; what it said before is forgotten."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.join()

    def __enter__(self) -> "_Other":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._process.close()
        self._seen.close()


def keep_on(join: Join, name: str, pause_s: float, to: Connection) -> None:
    """Campaign for ever and say after each look whether this process leads."""
    leadership = join(RUN, name)
    while True:
        with suppress(StoreUnreachable):
            to.send(leadership.campaign())
        time.sleep(pause_s)
