"""``commit.mode=async`` on real processes: a runtime dies while it stages; how long gates were shut."""

from pathlib import Path

import pytest
from tests.integration.kill_runs import run

from dcr_recipes.trace.check import check_file

pytestmark = pytest.mark.processes


def test_a_runtime_that_dies_while_it_stages_costs_nothing_but_an_attempt(tmp_path: Path) -> None:
    kills = ("runtime-0:receiver.hold:2:1",)
    done = run(tmp_path / "run", "commit.mode=async", "steps=3", kills=kills)
    assert (done.summary["final_version"], done.summary["differing_bits"]) == (3, 0)
    assert done.summary["pause_max_s"] >= done.summary["pause_mean_s"] > 0
    assert done.unfired == set()
    rows = done.rows
    assert [row["refit/attempts"] > 1 for row in rows].count(True) == 1
    assert all(row["refit/pause_s"] < row["refit/seconds"] for row in rows)
    assert check_file(done.folder.trace_json) == []
