"""The model of the refit benchmark: sizes, shards that cover it once, and changes at the wanted rate."""

import numpy as np
import pytest

from dcr_recipes.bench.apply_model import specs_of
from dcr_recipes.bench.refit import Options, _verdicts, quick
from dcr_recipes.bench.refit_model import RowShards, shape_for

SPECS = specs_of(shape_for(1.0, quick=True))


@pytest.mark.parametrize("gigabytes", [0.4, 1.0, 2.0])
def test_the_model_has_at_least_the_wanted_bytes_and_not_a_layer_more(gigabytes: float) -> None:
    num_bytes = sum(spec.num_bytes for spec in specs_of(shape_for(gigabytes, quick=False)))
    assert gigabytes * 1e9 <= num_bytes < gigabytes * 1e9 + 0.11e9


@pytest.mark.parametrize("world", [1, 2, 3])
def test_shards_cover_every_element_once(world: int) -> None:
    seen = {spec.name: np.zeros(spec.num_elements, dtype=np.int64) for spec in SPECS}
    for rank in range(world):
        for task in RowShards(SPECS, rank, world).tasks():
            seen[task.name][task.map.to_far(np.arange(task.num_elements, dtype=np.int64))] += 1
    assert all((count == 1).all() for count in seen.values())


def test_changes_are_as_many_as_wanted_and_told() -> None:
    shards = RowShards(SPECS, 0, 1)
    before = {task.key: np.array(shards.read(task)) for task in shards.tasks()}
    counters = shards.counters()
    moved = shards.change(0.05, seed=1)
    changed = sum(int(np.count_nonzero(before[task.key] != shards.read(task))) for task in shards.tasks())
    total = sum(task.num_elements for task in shards.tasks())
    assert changed == moved
    assert 0.03 < moved / total < 0.05, "some products round to what was there"
    assert shards.counters() != counters
    assert b"".join(shards.pieces(1000)) == b"".join(shards.read(task).tobytes() for task in shards.tasks())


def test_verdicts_name_where_transport_rules_and_how_much_shorter_pauses_are() -> None:
    row = {"num_nodes": 1, "wanted_rate": 0.01, "transport_to_construction": 2.5, "excess": 0.12}
    rows = [{**row, "mode": "sync", "pause_s": 3.0}, {**row, "mode": "async", "pause_s": 0.5}]
    first, _, last = _verdicts(rows)
    assert "transport is 2.5 times construction" in first
    assert "+12.0%" in first
    assert last.endswith("6.0 times shorter")
    assert _verdicts([{**rows[0], "transport_to_construction": 1.9}]) == []


def test_the_quick_one_keeps_what_does_not_take_time() -> None:
    asked = Options(nodes=(3, 1), modes=("async",), num_owners=3, ahead=7, poll_s=0.5)
    made = quick(asked)
    assert (made.nodes, made.modes, made.num_owners, made.ahead, made.poll_s) == ((3,), ("async",), 3, 7, 0.5)
    assert (made.num_warm, made.num_timed, made.sizes.quick) == (1, 1, True)
