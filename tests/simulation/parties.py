"""The cast of a simulated run: its model, and how any call of a party can end."""

import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr import observe
from dcr.config import CodecConfig
from dcr.errors import RefitError, Unreachable
from dcr.model import Catalogue, TensorSpec
from dcr.testing.toy_trainer import Placement, ToyTensor

Words = NDArray[np.uint16]
Tensors = dict[str, Words]

TENSORS = (
    ToyTensor(TensorSpec("split", (3, 2), "bfloat16"), Placement.ROWS),
    ToyTensor(TensorSpec("whole", (2,), "bfloat16"), Placement.REPLICATED),
)
CATALOGUE = Catalogue("ab" * 16, "cd" * 16, tuple(tensor.spec for tensor in TENSORS))
NUM_OWNERS = 2
PER_TASK = CodecConfig(chunk_mib=0, bucket_mib=0, threads=1, dense_share=1.0)
"""A payload a task, everything in one thread, and differences wherever they are allowed."""


def fresh_words(seed: int = 0) -> Tensors:
    """Words of version 0."""
    return {spec.name: np.arange(seed, seed + spec.num_elements, dtype="<u2") for spec in CATALOGUE.tensors}


def copy_of(words: Tensors) -> Tensors:
    """A deep copy."""
    return {name: array.copy() for name, array in words.items()}


class Crash(BaseException):
    """A process ends here; not an Exception, so that no border takes it for an error."""


class CrashAt:
    """Ends the running call at its ``num``-th named point."""

    def __init__(self, num: int) -> None:
        self.left = num
        self._thread = threading.current_thread()

    def __call__(self, event: observe.Event) -> None:
        if threading.current_thread() is not self._thread:
            return  # a write that the call waits for
        self.left -= 1
        if self.left == 0:
            raise Crash(event.name)


def call(agent: object, method: str, params: dict[str, Any], crash_at: int = 0) -> object:
    """Run one endpoint call; a RefitError is its answer. Raises Crash at the ``crash_at``-th point."""
    try:
        if not crash_at:
            return getattr(agent, method)(**params)
        with observe.listening(CrashAt(crash_at)):
            return getattr(agent, method)(**params)
    except RefitError as err:
        return err


def lost() -> Unreachable:
    """The answer that a coordinator sees when nothing comes back."""
    return Unreachable("no answer within its deadline")
