"""The fleet of the owner's tests, and the bits of its two versions."""

from pathlib import Path

import pytest
from tests.unit.owner_fleets import fleet_at_step_1, new_bits, old_bits

from dcr.testing.toy_fleet import ToyFleet
from dcr.testing.toy_trainer import Tensors


@pytest.fixture
def old() -> Tensors:
    return old_bits()


@pytest.fixture
def new(old: Tensors) -> Tensors:
    return new_bits(old)


@pytest.fixture
def fleet(tmp_path: Path, old: Tensors, new: Tensors) -> ToyFleet:
    return fleet_at_step_1(tmp_path, old, new)
