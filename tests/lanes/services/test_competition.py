"""Four processes compete for 500 commits on SQLite, one of them killed again and again."""

import multiprocessing
from functools import partial
from pathlib import Path

from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.testing.claims import claim_many
from dcr.testing.control_plane_suite import RUN, drain, first_state

_CLAIMS = 125
_WRITERS = 4
_DEATHS = 5


def test_no_commit_is_lost_or_duplicated(tmp_path: Path) -> None:
    open_plane = partial(SqliteControlPlane, tmp_path / "control")
    open_plane().create(first_state())
    spawn = multiprocessing.get_context("spawn")
    pipes = [spawn.Pipe(duplex=False) for _ in range(_WRITERS)]
    workers = [spawn.Process(target=claim_many, args=(open_plane, RUN, _CLAIMS, to)) for _, to in pipes]
    for worker in workers:
        worker.start()
    for _, to in pipes:
        to.close()
    of_the_dead: list[tuple[int, str]] = []
    for _ in range(_DEATHS):
        receiver, to = spawn.Pipe(duplex=False)
        victim = spawn.Process(target=claim_many, args=(open_plane, RUN, 1_000_000, to))
        victim.start()
        to.close()
        of_the_dead += [receiver.recv() for _ in range(5)]
        victim.kill()
        victim.join()
        of_the_dead += drain(receiver)
    won = [claim for pipe, _ in pipes for claim in drain(pipe)]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    revisions = sorted(revision for revision, _ in (*won, *of_the_dead))
    final = open_plane().read(RUN).revision
    assert len(won) == _WRITERS * _CLAIMS
    assert len(set(revisions)) == len(revisions), "two writers believe to have won one revision"
    assert len(revisions) <= final <= len(revisions) + _DEATHS, "each death left at most one unacknowledged"
