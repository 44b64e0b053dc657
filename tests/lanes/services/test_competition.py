"""Four processes compete for 500 commits on SQLite, one more of them killed again and again."""

from functools import partial
from pathlib import Path

from tests.lanes.services.writers import Writers

from dcr.commit.control_plane.sqlite import SqliteControlPlane

_CLAIMS = 125
_WRITERS = 4
_DEATHS = 5


def test_no_commit_is_lost_or_duplicated(tmp_path: Path) -> None:
    open_plane = partial(SqliteControlPlane, tmp_path / "control")
    writers = Writers(open_plane, num_writers=_WRITERS, num_claims=_CLAIMS)
    of_the_dead = [claim for _ in range(_DEATHS) for claim in writers.one_more_dies(after=5)]
    won = writers.finish()
    assert len(won) == _WRITERS * _CLAIMS
    writers.check(won + of_the_dead, deaths=_DEATHS)
