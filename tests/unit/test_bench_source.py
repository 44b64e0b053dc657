"""`dcr bench scan | construct`: keys that programs read, and equalities that hold at any speed."""

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dcr import observe
from dcr.model import AuditDigest
from dcr.source.detect import host_bits
from dcr.source.shares import OwnedShards
from dcr_recipes.bench import construct, construct_modes
from dcr_recipes.bench.ceilings import parts, xor_sum
from dcr_recipes.bench.construct_path import Built
from dcr_recipes.bench.fused_model import FullyConverted, Projected, make_model
from dcr_recipes.bench.report import Steps
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


def test_modes_send_one_change_in_three_ways(capsys: pytest.CaptureFixture[str]) -> None:
    """That they are one change is checked by digest on the way."""
    rows = _rows(capsys, "construct", "--modes", "--tp", "2")
    assert [row["mode"] for row in rows] == ["X", "P", "F"] * 2
    for x, p, f in zip(rows[::3], rows[1::3], rows[2::3], strict=True):
        assert x["rate"] == p["rate"] == f["rate"] > 0
        assert (p["time_ratio"], p["payload_ratio"]) == (1.0, 1.0)
        assert x["payload_ratio"] < 0.8 < f["payload_ratio"]
        assert f["payload_bytes"] <= p["payload_bytes"]  # fewer items
        assert "assemble" in f["stage_cpu_s_per_gb"]
        assert "take" in p["stage_cpu_s_per_gb"]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_full_conversion_and_projection_give_the_same_tensors(num_ranks: int) -> None:
    model = make_model(1, num_ranks, (0.03,), Steps(1))
    model.move_to(0.03)
    projected = {spec.name: np.zeros(spec.num_elements, np.uint16) for spec in model.specs}
    times = {spec.name: np.zeros(spec.num_elements, np.int8) for spec in model.specs}
    for rank in range(num_ranks):
        source = OwnedShards(Projected(model, rank), rank)
        for task in source.tasks():
            far = task.map.to_far(np.arange(task.num_elements, dtype=np.int64))
            projected[task.name][far[far >= 0]] = host_bits(source.read(task))[far >= 0]
            times[task.name][far[far >= 0]] += 1
    for rank in range(num_ranks):
        full = FullyConverted(model, rank)
        for task in full.tasks():
            np.testing.assert_array_equal(full.read(task), projected.pop(task.name))
    assert not projected
    assert all((each == 1).all() for each in times.values())


def test_modes_that_find_different_candidates_are_an_error() -> None:
    audit = {"w": AuditDigest(1, 1)}
    with pytest.raises(AssertionError, match="mode F found another candidate"):
        construct_modes._require_equal({"X": audit, "P": audit, "F": {"w": AuditDigest(2, 1)}})


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
