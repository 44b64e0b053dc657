"""MegatronShards over real Megatron worlds: the Bridge's old export plus the delta is its new export."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.fsdp_worlds import Recorded
from tests.contract.test_fsdp_shards import RecordedSource
from tests.lanes.megatron.layouts import LAYOUTS
from tests.lanes.megatron.results import arrays, facts, truth

from dcr.model import Bits, from_json
from dcr.testing.shard_source_suite import ShardSourceContract, ShardWorld


@pytest.fixture(params=list(LAYOUTS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sources(folder: Path, phase: str, world: int) -> list[RecordedSource]:
    made = []
    for rank in range(world):
        recorded = from_json(Recorded, (folder / f"{phase}-source-{rank}.json").read_bytes())
        reads = arrays(folder / f"{phase}-reads-{rank}.npz")
        keyed = {task.key: reads[str(at)] for at, task in enumerate(recorded.tasks)}
        made.append(RecordedSource(recorded, keyed))
    return made


def without_aliases(dense: dict[str, Bits], world: list[RecordedSource]) -> dict[str, Bits]:
    aliases = {alias for spec in world[0].tensors() for alias in spec.aliases}
    return {key: bits for key, bits in dense.items() if key not in aliases}


class TestShards(ShardSourceContract):
    @pytest.fixture(params=["old", "new"])
    def world(self, folder: Path, name: str, request: pytest.FixtureRequest) -> ShardWorld:
        made = sources(folder, request.param, LAYOUTS[name].degrees.world)
        return ShardWorld(made, without_aliases(truth(folder, request.param), made))


def items(folder: Path) -> Iterator[tuple[str, Any, Bits]]:
    for path in sorted(folder.glob("delta-*.npz")):
        found = arrays(path)
        for key in [key for key in found if key.endswith(" name")]:
            at = key.split()[0]
            yield str(found[key]), found[f"{at} at"], found[f"{at} new"]


def test_the_old_export_and_the_delta_are_the_new_export(folder: Path, name: str) -> None:
    old, new = truth(folder, "old"), truth(folder, "new")
    aliases = {spec.name: spec.aliases for spec in sources(folder, "old", 1)[0].tensors()}
    for tensor, at, bits in items(folder):
        for each in (tensor, *aliases[tensor]):
            old[each].reshape(-1)[at] = bits
    assert old.keys() == new.keys()
    for tensor, bits in new.items():
        np.testing.assert_array_equal(old[tensor], bits, err_msg=tensor)


def test_every_change_is_found_by_one_owner(folder: Path) -> None:
    old, new = truth(folder, "old"), truth(folder, "new")
    found: dict[str, list[Any]] = {}
    for tensor, at, _ in items(folder):
        found.setdefault(tensor, []).append(at)
    changed = 0
    for tensor, locations in found.items():
        want = np.flatnonzero(old[tensor].reshape(-1) != new[tensor].reshape(-1))
        np.testing.assert_array_equal(np.sort(np.concatenate(locations)), want, err_msg=tensor)
        changed += want.size
    assert changed > 1000


def test_counters_move_with_a_step(folder: Path) -> None:
    old, new = (sources(folder, phase, 1)[0].counters() for phase in ("old", "new"))
    assert old != new


def test_nothing_is_residual_and_the_guard_against_collectives_bites(folder: Path) -> None:
    assert facts(folder)["residual"] == 0
    assert "communicates during construction" in facts(folder)["guard"]


def test_the_published_classification_leaves_fused_weights_and_vocabulary_to_the_residual_path(
    folder: Path, name: str
) -> None:
    residual = [json.loads(each) for each in facts(folder)["published"]]
    outputs = {output for each in residual for output in each["outputs"]}
    assert (len(residual), len(outputs)) == LAYOUTS[name].published
    assert "conversions need the residual path, which is off" in facts(folder)["refusal"]
    assert all(each["inputs"] and each["reason"] for each in residual)


def test_parameters_that_the_next_forward_pass_gathers_are_refused_until_they_are_gathered(
    folder: Path, name: str
) -> None:
    said = facts(folder)["pending"]
    assert ("overlap_param_gather" in said) if LAYOUTS[name].overlap else said == ""


def test_residual_tensors_are_converted_by_the_bridge_each_on_one_rank(folder: Path) -> None:
    new, parts = truth(folder, "new"), [arrays(path) for path in sorted(folder.glob("residual-*.npz"))]
    residual = [json.loads(each) for each in facts(folder)["published"]]
    outputs = sorted(output for each in residual for output in each["outputs"])
    assert sorted(name for part in parts for name in part) == outputs
    for part in parts:
        for tensor, bits in part.items():
            np.testing.assert_array_equal(bits, new[tensor].reshape(-1), err_msg=tensor)
            assert facts(folder)["tensors"][tensor] == list(new[tensor].shape)
    held = [facts(folder, rank)["inputs"] for rank in range(len(parts))]
    assert {name for part in held for name in part} == {name for each in residual for name in each["inputs"]}


def test_replicas_of_data_and_tensor_parallelism_share_the_work(worlds: Path) -> None:
    for name in ("dp2", "dp2-tp2"):
        owners = [sum(1 for key in arrays(path) if key.endswith(" name")) for path in
                  sorted((worlds / name).glob("delta-*.npz"))]  # fmt: skip
        assert all(owners), (name, owners)


def test_padding_and_empty_shards_have_no_task(worlds: Path) -> None:
    """A vocabulary of 250 over four ranks of 128 rows: the third and fourth hold only padding."""
    held = [{task.name for task in source.tasks()} for source in sources(worlds / "tp4-groups2", "old", 4)]
    assert [("lm_head.weight" in names) for names in held] == [True, True, False, False]
