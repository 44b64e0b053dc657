"""What every ControlPlane must do; each implementation's test subclasses this (DESIGN P1, P4)."""

import multiprocessing
import threading
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

import pytest

from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.transitions import abandon, commit, mark_opened, new_run, prepare, take_over
from dcr.errors import ConfigError, Conflict, MissingObject
from dcr.model import GENESIS, CandidateId, CommitRecord, ControlState, new_nonce

OpenPlane: TypeAlias = Callable[[], ControlPlane]
RUN = "0" * 32
OTHER_RUN = "1" * 32
CANDIDATE = CandidateId(7, ("a", "b"), "c")


def first_state(run: str = RUN) -> ControlState:
    """A run at v0."""
    record = CommitRecord(run, 0, GENESIS, 1, new_nonce(), None, 0, "cat", "man", "aud")
    return new_run(record)


def claim_revisions(open_plane: OpenPlane, run: str, num_writes: int) -> list[int]:
    """Win ``num_writes`` compare-and-sets against whoever competes; the revisions won."""
    plane = open_plane()
    won: list[int] = []
    while len(won) < num_writes:
        state = plane.read(run)
        try:
            plane.compare_and_set(state, take_over(state, new_nonce()))
        except Conflict:
            continue
        won.append(state.revision + 1)
    return won


def claim_in_process(open_plane: OpenPlane, run: str, num_writes: int, to: Connection) -> None:
    """``claim_revisions`` one by one; each is sent as soon as it is acknowledged."""
    for _ in range(num_writes):
        to.send(claim_revisions(open_plane, run, 1)[0])
    to.close()


class ControlPlaneContract:
    """A subclass defines the fixture ``open_plane``: each call opens another handle on the same runs."""

    @pytest.fixture
    def plane(self, open_plane: OpenPlane) -> ControlPlane:
        """One handle on an empty control plane."""
        return open_plane()

    def test_a_run_is_never_replaced_by_another(self, plane: ControlPlane) -> None:
        """A value of another run is refused before it is compared."""
        first = first_state()
        plane.create(first)
        with pytest.raises(ConfigError, match=OTHER_RUN):
            plane.compare_and_set(first, replace(take_over(first, new_nonce()), run=OTHER_RUN))
        assert plane.read(RUN) == first

    def test_a_run_is_created_once(self, plane: ControlPlane) -> None:
        """Create-if-absent: the first value stays, equal or not."""
        first = first_state()
        plane.create(first)
        for other in (first, first_state()):
            with pytest.raises(Conflict, match=RUN):
                plane.create(other)
        assert plane.read(RUN) == first

    def test_a_missing_run_is_named(self, plane: ControlPlane) -> None:
        """Reading and changing what does not exist."""
        with pytest.raises(MissingObject, match=RUN):
            plane.read(RUN)
        state = first_state()
        with pytest.raises(Conflict):
            plane.compare_and_set(state, take_over(state, "n"))
        with pytest.raises(MissingObject):
            plane.read(RUN)

    def test_runs_do_not_touch_each_other(self, plane: ControlPlane) -> None:
        """Two runs may share a control plane."""
        mine, other = first_state(), first_state(OTHER_RUN)
        plane.create(mine)
        plane.create(other)
        plane.compare_and_set(mine, take_over(mine, "n"))
        assert plane.read(OTHER_RUN) == other
        assert plane.read(RUN).epoch == mine.epoch + 1

    def test_every_kind_of_value_comes_back_equal(self, open_plane: OpenPlane) -> None:
        """A whole transition, each value read through another handle."""
        state = first_state()
        open_plane().create(state)
        prepared = prepare(state, CANDIDATE, epoch=state.epoch, nonce="1")
        assert prepared.active is not None
        attempt = prepared.active.attempt
        opened = mark_opened(prepared, attempt, nonce="2")
        record = replace(
            state.record, version=1, attempt=attempt, writer="3", parent=state.record.attempt, manifest="ü"
        )
        for wanted in (prepared, opened, commit(opened, record), abandon(opened, attempt, nonce="4")):
            current = open_plane().read(RUN)
            open_plane().compare_and_set(current, wanted)
            assert open_plane().read(RUN) == wanted

    def test_a_stale_expectation_is_refused(self, plane: ControlPlane) -> None:
        """Also if it differs in the writer alone, or was the value once (no ABA)."""
        state = first_state()
        plane.create(state)
        with pytest.raises(Conflict):
            plane.compare_and_set(replace(state, writer="x"), take_over(state, "n"))
        once = take_over(state, "n")
        plane.compare_and_set(state, once)
        twin = replace(once, writer="m")
        plane.compare_and_set(once, twin)
        with pytest.raises(Conflict):
            plane.compare_and_set(once, take_over(once, "o"))
        assert plane.read(RUN) == twin

    def test_threads_lose_and_duplicate_nothing(self, open_plane: OpenPlane) -> None:
        """Every acknowledged write is one revision, and together they are all of them."""
        open_plane().create(first_state())
        won: list[list[int]] = []

        def work() -> None:
            won.append(claim_revisions(open_plane, RUN, 10))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(revision for part in won for revision in part) == list(range(1, 41))
        assert open_plane().read(RUN).revision == 40

    def test_creators_have_one_winner(self, open_plane: OpenPlane) -> None:
        """Two coordinators that start the same run at once."""
        winners: list[ControlState] = []

        def work() -> None:
            state = first_state()
            try:
                open_plane().create(state)
            except Conflict:
                return
            winners.append(state)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert winners == [open_plane().read(RUN)]


class SharedControlPlaneContract(ControlPlaneContract):
    """For control planes that several processes share; ``open_plane`` must be picklable."""

    def test_processes_lose_and_duplicate_nothing(self, open_plane: OpenPlane) -> None:
        """As for threads."""
        open_plane().create(first_state())
        spawn = multiprocessing.get_context("spawn")
        pipes = [spawn.Pipe(duplex=False) for _ in range(4)]
        workers = [spawn.Process(target=claim_in_process, args=(open_plane, RUN, 10, to)) for _, to in pipes]
        for worker in workers:
            worker.start()
        won = [pipe.recv() for pipe, _ in pipes for _ in range(10)]
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert sorted(won) == list(range(1, 41))
        assert open_plane().read(RUN).revision == 40

    def test_a_killed_writer_loses_nothing_acknowledged(self, open_plane: OpenPlane) -> None:
        """``kill -9`` in the middle of writes; the survivors go on, and no lock stays behind."""
        open_plane().create(first_state())
        spawn = multiprocessing.get_context("spawn")
        receiver, sender = spawn.Pipe(duplex=False)
        writer = spawn.Process(target=claim_in_process, args=(open_plane, RUN, 1_000_000, sender))
        writer.start()
        sender.close()
        acknowledged = [receiver.recv() for _ in range(20)]
        writer.kill()
        writer.join()
        acknowledged += drain(receiver)
        assert acknowledged == list(range(1, len(acknowledged) + 1))
        revision = open_plane().read(RUN).revision
        assert revision in (len(acknowledged), len(acknowledged) + 1), "at most one write had no answer yet"
        assert claim_revisions(open_plane, RUN, 1) == [revision + 1]


def drain(receiver: Connection) -> list[Any]:
    """What a dead sender had still put into the pipe."""
    rest: list[Any] = []
    try:
        while True:
            rest.append(receiver.recv())
    except (EOFError, OSError):
        return rest
