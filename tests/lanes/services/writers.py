"""Processes that compete for commits on one control plane, and what must hold of what they won."""

import multiprocessing
from collections.abc import Callable
from typing import TYPE_CHECKING

from dcr.commit.control_plane.base import ControlPlane
from dcr.testing.claims import claim_many
from dcr.testing.control_plane_suite import RUN, drain, first_state

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Claim = tuple[int, str]
"""The revision that a writer won, and how it learned of it."""
_SPAWN = multiprocessing.get_context("spawn")
_ENDLESS = 1_000_000


class Writers:
    """``num_writers`` processes that win ``num_claims`` commits each; the run is created first."""

    def __init__(self, open_plane: Callable[[], ControlPlane], *, num_writers: int, num_claims: int) -> None:
        self._open_plane = open_plane
        open_plane().create(first_state())
        self._started = [self._start(num_claims) for _ in range(num_writers)]

    def first(self, num_claims: int) -> list[Claim]:
        """Wait for so many of each writer."""
        return [pipe.recv() for pipe, _ in self._started for _ in range(num_claims)]

    def one_more_dies(self, after: int) -> list[Claim]:
        """Start another writer, kill it when it has won ``after`` commits; all that it told of."""
        pipe, victim = self._start(_ENDLESS)
        won = [pipe.recv() for _ in range(after)]
        victim.kill()
        victim.join()
        return won + drain(pipe)

    def finish(self) -> list[Claim]:
        """What else the writers win, until all have ended well."""
        won = [claim for pipe, _ in self._started for claim in drain(pipe)]
        for _, worker in self._started:
            worker.join()
            assert worker.exitcode == 0
        return won

    def check(self, won: list[Claim], *, deaths: int | None = None) -> None:
        """Nothing of ``won``, all there is, is double or lost; each of ``deaths`` hid one commit at most."""
        revisions = [revision for revision, _ in won]
        final = self._open_plane().read(RUN).revision
        assert len(set(revisions)) == len(revisions), "two writers believe to have won one revision"
        assert max(revisions) <= final, "an acknowledged commit is lost"
        if deaths is not None:
            assert len(revisions) <= final <= len(revisions) + deaths

    def _start(self, num_claims: int) -> "tuple[Connection, BaseProcess]":
        receiver, to = _SPAWN.Pipe(duplex=False)
        worker = _SPAWN.Process(target=claim_many, args=(self._open_plane, RUN, num_claims, to))
        worker.start()
        to.close()
        return receiver, worker
