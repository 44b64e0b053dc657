"""FsdpShards over real FSDP2 worlds of 1, 2 and 4 gloo ranks, and over a model that is not sharded."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dcr.errors import ConfigError, UnsupportedPath
from dcr.model import Bits, TensorSpec, from_json
from dcr.source.task import AffineTask
from dcr.testing.shard_source_suite import ShardSourceContract, ShardWorld

torch = pytest.importorskip("torch")

from tests.contract.fsdp_worlds import CASES, ROWS, Recorded, bits_of, build, dense_truth  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel  # noqa: E402

from dcr_adapters.fsdp import FsdpShards, gather_dense  # noqa: E402 -- needs torch

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class RecordedSource:
    """A ShardSource that answers what a rank of another process answered."""

    recorded: Recorded
    reads: dict[str, Bits]

    def tensors(self) -> tuple[TensorSpec, ...]:
        return self.recorded.tensors

    def tasks(self) -> tuple[AffineTask, ...]:
        return self.recorded.tasks

    def read(self, task: AffineTask) -> Bits:
        return self.reads[task.key]

    def counters(self) -> str:
        return self.recorded.counters


def arrays(path: Path) -> dict[str, Bits]:
    with np.load(path) as data:
        return dict(data)


def load_world(folder: Path, num_ranks: int) -> ShardWorld:
    sources = []
    for rank in range(num_ranks):
        recorded = from_json(Recorded, (folder / f"{rank}.json").read_bytes())
        reads = arrays(folder / f"{rank}.npz")
        keyed = {task.key: reads[str(i)] for i, task in enumerate(recorded.tasks)}
        sources.append(RecordedSource(recorded, keyed))
    return ShardWorld(sources, arrays(folder / "truth-0.npz"))


@pytest.fixture(scope="session")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fsdp-worlds")
    command = [sys.executable, "-m", "tests.contract.fsdp_worlds", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def facts(worlds: Path, num_ranks: int) -> list[dict[str, dict[str, Any]]]:
    return [json.loads((worlds / f"facts-{num_ranks}-{rank}.json").read_text()) for rank in range(num_ranks)]


class TestFsdpShards(ShardSourceContract):
    @pytest.fixture(
        params=[(case, phase) for case in CASES for phase in ("initial", "stepped")], ids=" ".join
    )
    def world(self, worlds: Path, request: pytest.FixtureRequest) -> ShardWorld:
        case, phase = request.param
        return load_world(worlds / case / phase, CASES[case][0])

    def test_all_ranks_saw_one_truth(self, worlds: Path) -> None:
        for case, (num_ranks, _, _) in CASES.items():
            for phase in ("initial", "stepped"):
                first, *others = [arrays(worlds / case / phase / f"truth-{r}.npz") for r in range(num_ranks)]
                for other in others:
                    assert all(np.array_equal(first[name], other[name]) for name in first), (case, phase)


class TestUnshardedModel(ShardSourceContract):
    @pytest.fixture
    def world(self) -> ShardWorld:
        model = build()
        return ShardWorld([FsdpShards(model)], dense_truth(model))


class TestFacts:
    @pytest.mark.parametrize("num_ranks", [1, 2, 4])
    def test_gather_dense_and_training(self, worlds: Path, num_ranks: int) -> None:
        for of_rank in facts(worlds, num_ranks):
            for case, found in of_rank.items():
                for fact, value in found.items():
                    if fact.endswith("_differs"):
                        assert value == [], (case, fact)
                    elif fact.startswith(("forward_", "step_", "root_")):
                        assert value is True, (case, fact)

    REFUSED: ClassVar[dict[str, str]] = {
        "declared_float32": "UnsupportedPath: tensor 'layers.0.up.weight' is declared float32",
        "served_int8": "ConfigError: served_dtype 'int8'",
        "buffer_changed_dtype": "UnsupportedPath: tensor 'scale' is declared float32 but holds torch.float64",
        "complex": "UnsupportedPath: tensor 'spin' has dtype complex64",
        "replaced_by_plain": "UnsupportedPath: tensor 'layers.0.up.weight' is no longer laid out",
        "no_longer_tied": "UnsupportedPath: tensor 'embed.weight' is no longer laid out or tied",
    }

    @pytest.mark.parametrize("what", REFUSED)
    def test_a_changed_model_is_refused(self, worlds: Path, what: str) -> None:
        for of_rank in facts(worlds, 2):
            assert of_rank["two"][what].startswith(self.REFUSED[what])

    def test_layouts_that_cannot_be_known_are_refused(self, worlds: Path) -> None:
        for of_rank in facts(worlds, 4):
            found = of_rank["layouts"]
            assert found["strided_12"] == "accepted"
            for rows in (9, 10):
                assert found[f"strided_{rows}"].startswith(
                    f"UnsupportedPath: parameter '0.weight' of shape ({rows}, 4)"
                )
            assert "Partial" in found["partial"]
            assert found["partial"].startswith("UnsupportedPath: parameter 'weight'")


class TestGeometry:
    def task(self, worlds: Path, case: str, rank: int, name: str) -> AffineTask:
        source = load_world(worlds / case / "initial", CASES[case][0]).sources[rank]
        return next(task for task in source.tasks() if task.name == name)

    def test_uneven_rows(self, worlds: Path) -> None:
        first, second = (self.task(worlds, "two", rank, "embed.weight") for rank in (0, 1))
        assert (first.num_elements, second.num_elements) == (502 * 8, 501 * 8)
        assert (first.map.shift, second.map.shift) == (0, 502 * 8)
        assert (first.replicas, second.replicas) == ((0,), (1,))

    def test_tied_names_are_one_tensor(self, worlds: Path) -> None:
        world = load_world(worlds / "two" / "initial", 2)
        assert world.specs()["embed.weight"].aliases == ("head.weight",)
        assert "head.weight" not in world.specs()

    def test_ranks_without_rows_have_no_task(self, worlds: Path) -> None:
        world = load_world(worlds / "four" / "initial", 4)
        holders = [rank for rank, _, task in world.shards() if task.name == "gain"]
        assert holders == [0]

    def test_hybrid_replicas(self, worlds: Path) -> None:
        found = [self.task(worlds, "four-hybrid", rank, "embed.weight").replicas for rank in range(4)]
        assert found == [(0, 2), (1, 3), (0, 2), (1, 3)]

    def test_norms_are_replicated_over_tensor_parallel_ranks(self, worlds: Path) -> None:
        case = "four-tensor-parallel"
        norms = [self.task(worlds, case, rank, "layers.0.norm.weight").replicas for rank in range(4)]
        assert norms == [(0, 1), (0, 1), (2, 3), (2, 3)]
        split = [self.task(worlds, case, rank, "layers.0.up.weight").map.shift for rank in range(4)]
        assert split == [0, 48, 24, 72]

    def test_whole_tensors_are_held_by_all(self, worlds: Path) -> None:
        assert self.task(worlds, "four", 2, "steps").replicas == (0, 1, 2, 3)


class TestServedDtypes:
    def test_parameters_are_cast_and_buffers_are_not(self) -> None:
        found = {spec.name: spec.dtype for spec in FsdpShards(build()).tensors()}
        assert found["embed.weight"] == found["frozen"] == "bfloat16"
        assert (found["steps"], found["mask"], found["scale"]) == ("int64", "bool", "float32")
        assert "cache" not in found

    @pytest.mark.parametrize("served", ["bfloat16", "float16", "float32"])
    def test_each_served_dtype(self, served: str) -> None:
        model = build()
        source = FsdpShards(model, served_dtype=served)
        dense = gather_dense(model, served_dtype=served)
        assert list(dense) == [spec.name for spec in source.tensors()]
        for task in source.tasks():
            np.testing.assert_array_equal(source.read(task), bits_of(dense[task.name]).reshape(-1))

    def test_a_range_is_the_slice_of_the_whole(self) -> None:
        source = FsdpShards(build())
        for task in source.tasks():
            start, stop = task.num_elements // 3, task.num_elements
            np.testing.assert_array_equal(source.read_range(task, start, stop), source.read(task)[start:stop])

    def test_float64_parameters_keep_their_dtype(self) -> None:
        model = torch.nn.Linear(3, 2).double()
        assert {spec.dtype for spec in FsdpShards(model).tensors()} == {"float64"}

    def test_a_widened_parameter_is_refused(self) -> None:
        model = build()
        source = FsdpShards(model)
        task = source.tasks()[0]
        model.double()
        with pytest.raises(UnsupportedPath, match=r"declared bfloat16 but holds torch\.float64"):
            source.read(task)

    def test_an_unknown_served_dtype_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="served_dtype"):
            FsdpShards(build(), served_dtype="bf16")

    def test_flat_parameters_are_refused(self) -> None:
        """Of the first FSDP; its own making needs a process group and an accelerator."""
        model = build()
        wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
        torch.nn.Module.__init__(wrapper)
        wrapper._fsdp_wrapped_module = model.layers
        model.add_module("layers", wrapper)
        with pytest.raises(
            UnsupportedPath, match=r"'layers\.0\.[a-z.]*' is in a flat parameter of FullyShardedData"
        ):
            FsdpShards(model)

    def test_replaced_weights_are_the_ones_read(self) -> None:
        """A load that assigns new tensors must not leave the source on the old ones."""
        model = torch.nn.Linear(3, 2)
        source = FsdpShards(model)
        model.load_state_dict({k: v.clone() + 1 for k, v in model.state_dict().items()}, assign=True)
        for task in source.tasks():
            want = bits_of(model.state_dict()[task.name].to(torch.bfloat16)).reshape(-1)
            np.testing.assert_array_equal(source.read(task), want)

    def test_names_under_activation_checkpointing_are_those_of_state_dict(self) -> None:
        wrapper = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")
        model = torch.nn.Sequential(wrapper.checkpoint_wrapper(torch.nn.Linear(ROWS % 7 + 1, 2)))
        assert [spec.name for spec in FsdpShards(model).tensors()] == ["0.weight", "0.bias"]
