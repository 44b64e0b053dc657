"""The toy fleet of the owner's tests: version 0 committed, step 1 written and presented."""

from pathlib import Path

import numpy as np

from dcr.config import CodecConfig
from dcr.model import AttemptId, PathClass, TensorSpec
from dcr.testing.toy_fleet import ToyFleet
from dcr.testing.toy_trainer import Placement, Tensors, ToyTensor, mutate, random_bits

TENSORS = [
    ToyTensor(TensorSpec("embed", (40, 3), "bfloat16", aliases=("head",)), Placement.ROWS),
    ToyTensor(TensorSpec("norm", (7,), "float32")),
    ToyTensor(TensorSpec("bias", (5,), "float16")),
    ToyTensor(TensorSpec("proj", (6, 5), "bfloat16"), Placement.COLUMNS),
]
XOR = dict.fromkeys(("embed", "norm", "bias", "proj"), PathClass.XOR)
ONE, TWO, THREE = (AttemptId(version=1, number=number) for number in (1, 2, 3))


def equal(left: Tensors, right: Tensors) -> bool:
    return all(np.array_equal(left[name], right[name]) for name in right)


def old_bits() -> Tensors:
    return random_bits(TENSORS, np.random.default_rng(1))


def new_bits(old: Tensors) -> Tensors:
    return mutate(old, 0.3, np.random.default_rng(2))


def fleet_at_step_1(folder: Path, old: Tensors, new: Tensors) -> ToyFleet:
    """One payload per tensor."""
    fleet = ToyFleet(folder, TENSORS, old, codec=CodecConfig(chunk_mib=0, bucket_mib=0))
    fleet.genesis()
    fleet.write(new)
    for owner in fleet.owners:
        owner.present(1)
    return fleet
