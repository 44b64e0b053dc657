"""The residual path on real Megatron ranks: what is committed is the Bridge's own export (R5, R3)."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tests.lanes.megatron.layouts import ADAPTED, LAYOUTS
from tests.lanes.megatron.results import arrays, facts, truth

REFITTED = {name: layout for name, layout in (LAYOUTS | ADAPTED).items() if layout.refit or layout.lora}


@pytest.fixture(params=list(REFITTED))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(("version", "phase"), [(1, "new"), (2, "newer"), (3, "newer")])
def test_every_committed_version_is_the_bridges_export(folder: Path, version: int, phase: str) -> None:
    exported, committed = truth(folder, phase), arrays(folder / f"committed-{version}.npz")
    assert committed.keys() <= exported.keys()
    for tensor, bits in committed.items():
        np.testing.assert_array_equal(bits, exported[tensor].reshape(-1), err_msg=tensor)


def test_every_step_changes_something_and_a_restart_nothing(folder: Path) -> None:
    exported = [truth(folder, phase) for phase in ("old", "new", "newer", "newer")]
    names = arrays(folder / "committed-1.npz").keys()
    want = [
        sum(int(np.count_nonzero(before[name] != after[name])) for name in names)
        for before, after in pairwise(exported)
    ]
    assert all(want[:2])
    for rank in range(2):
        assert facts(folder, rank)["changed"] == want
    assert want[2] == 0  # nothing is sent again after trackers were rebuilt


def test_a_restarted_trainer_proves_its_trackers_by_digest_or_rebuilds_them(folder: Path) -> None:
    for rank in range(2):
        proven, rebuilt = facts(folder, rank)["replayed"]
        assert proven == 0
        assert (rebuilt > 0) == (rank == 0)


def test_merged_adapters_change_what_the_base_weights_serve(worlds: Path) -> None:
    """The base weights are frozen: only merged attention weights changed, all of them through the export."""
    for name in ADAPTED:
        old, new = truth(worlds / name, "old"), truth(worlds / name, "new")
        changed = {tensor for tensor in old if not np.array_equal(old[tensor], new[tensor])}
        assert {tensor.split(".")[-2] for tensor in changed} == {"q_proj", "k_proj", "v_proj", "o_proj"}
        assert {tensor.split(".")[2] for tensor in changed} == {"0", "1"}
