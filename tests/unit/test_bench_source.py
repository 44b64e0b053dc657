"""`dcr bench scan | construct`: keys that programs read, and equalities that hold at any speed."""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dcr import observe
from dcr_recipes.bench import construct
from dcr_recipes.bench.ceilings import parts, xor_sum
from dcr_recipes.bench.construct_path import Built
from dcr_recipes.bench.scan_kernels import KERNELS
from dcr_recipes.bench.stages import StageSeconds
from dcr_recipes.bench.timing import interleaved
from dcr_recipes.cli import main


def _rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert main(["bench", *words, "--quick", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return rows


def test_scan_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _rows(capsys, "scan")
    assert {(row["rate"], row["kernel"], row["threads"]) for row in rows} == {
        (rate, kernel, threads)
        for rate in (0.001, 0.01, 0.03, 0.05)
        for kernel in ("numba", "numba with bits", "numpy", "torch")
        for threads in (1, 2)
    }
    assert all(row["gb_per_s"] > 0 < row["ceiling_gb_per_s"] for row in rows)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_finds_every_change(name: str, threads: int) -> None:
    rng = np.random.default_rng(5)
    baseline = rng.integers(0, 1 << 16, 100_003).astype(np.uint16)
    wanted = np.flatnonzero(rng.random(baseline.size) < 0.02)
    candidate = baseline.copy()
    candidate[wanted] ^= np.uint16(0x8000)
    assert np.array_equal(KERNELS[name](candidate, baseline, threads), wanted)


def test_construct_rows(capsys: pytest.CaptureFixture[str]) -> None:
    rows = _rows(capsys, "construct", "--mib", "2")
    assert [row["mode"] for row in rows] == ["planes", "published"] * 3
    wanted = {"mode", "rate", "cpu_s_per_gb", "wall_s_per_gb", "payload_bytes", "checkpoint_bytes"}
    for planes, published in zip(rows[::2], rows[1::2], strict=True):
        assert wanted <= planes.keys()
        assert planes["rate"] == published["rate"]
        assert planes["payload_bytes"] < published["payload_bytes"]
        assert planes["same_bytes_for_threads"] == [1, 2]
        assert {"compare", "project", "encode", "send"} <= planes["stage_cpu_s_per_gb"].keys()


def test_bytes_that_depend_on_threads_are_an_error() -> None:
    class Broken:
        def run(self, threads: int = 1) -> Built:
            return Built((str(threads),), 1, 1)

    with pytest.raises(AssertionError, match="depend on the threads"):
        construct._same_bytes(Broken())  # type: ignore[arg-type]


def test_stages_do_not_count_what_is_inside_them() -> None:
    stages = StageSeconds()
    with observe.listening(stages), observe.span("owner.encode"):
        _spin(0.02)
        with observe.span("owner.compress"):
            _spin(0.04)
    assert stages.seconds["compress"] >= 0.04
    assert 0.02 <= stages.seconds["encode"] < stages.seconds["compress"]


def test_points_cost_nothing() -> None:
    stages = StageSeconds()
    with observe.listening(stages):
        observe.point("owner.task.before")
    assert not stages.seconds


def test_rounds_are_interleaved_and_begin_one_further_on() -> None:
    order: list[str] = []

    def note(name: str) -> Callable[[], None]:
        return lambda: order.append(name)

    interleaved({"a": note("a"), "b": note("b")}, rounds=2)
    assert order == ["a", "b", "a", "b", "b", "a"]


def test_parts_cover_everything() -> None:
    for size in (0, 7, 8, 100, 1001):
        found = parts(size, 3)
        assert [part.start for part in found[1:]] == [part.stop for part in found[:-1]]
        assert (found[0].start, found[-1].stop) == (0, size)


def test_the_ceiling_reads_every_word() -> None:
    left = np.arange(100, dtype=np.uint64)
    right = np.zeros(100, np.uint64)
    assert int(xor_sum()(left, right)) == 4950


def _spin(seconds: float) -> None:
    """Spend processor time."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
