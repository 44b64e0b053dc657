"""``dcr bench refit`` on a tiny model: what it reports agrees with itself."""

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.processes


def test_both_modes_in_one_run() -> None:
    words = [
        "bench",
        "refit",
        "--quick",
        "--nodes",
        "1",
        "--mode",
        "sync",
        "async",
        "--limiter",
        "user",
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "dcr_recipes.cli", *words],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [row["mode"] for row in told["rows"]] == ["sync", "async"]
    for row in told["rows"]:
        assert 0 < row["construction_s"] < row["latency_s"] < row["wall_s"]
        assert row["transport_s"] == max(row["upload_s"], row["download_s"]) > 0
        assert 0 < row["finalization_s"] < row["latency_s"]
        assert row["latency_min_s"] <= row["latency_s"] <= row["latency_max_s"]
        assert row["speedup"] == pytest.approx(row["reference_s"] / row["latency_s"])
        assert row["pause_s"] > 0
        assert 0.005 < row["rate"] < 0.02
    assert [each["num_proven"] for each in told["clusters"]] == [1, 1]
