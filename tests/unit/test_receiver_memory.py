"""A receiver's memory does not grow with the number of refits, at the level of the loader."""

import gc
import tracemalloc
import weakref

import numpy as np
import pytest

from dcr.model import Encoding
from dcr.receiver.apply import Applier
from dcr.receiver.methods import MethodName
from dcr.testing.deltas import audit_of, changed_version, delta_items, payload_of, random_version
from dcr.testing.native_loader_suite import take
from dcr.testing.toy_runtime import ToyRuntime

ROOM_BYTES = 64 << 10
"""What interning and caches of a fixed size may still take; 40 items a refit would leave far more."""


def grows_by(method: MethodName, num_refits: int) -> int:
    """Bytes that the second half of ``num_refits`` transitions, in all representations, leaves behind."""
    rng = np.random.default_rng(5)
    runtime = ToyRuntime()
    catalogue = runtime.catalogue
    versions = [random_version(catalogue, rng)]
    versions.append(changed_version(catalogue, versions[0], rng, 0.3))
    applier = Applier(runtime, catalogue, method=method)
    classes = applier.prewarm()
    applier.restore(versions[0], audit_of(catalogue, versions[0]))
    kinds = list(Encoding)
    held = []
    tracemalloc.start()
    try:
        for step in range(num_refits):
            old, new = versions[step % 2], versions[1 - step % 2]
            take(applier, catalogue, delta_items(catalogue, old, new, classes, difference=kinds[step % 3]))
            if step + 1 in (num_refits // 2, num_refits):
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    return held[1] - held[0]


def test_a_checked_attempt_leaves_no_payload_behind() -> None:
    """Payloads are a good part of a model's size, and the next refit may be minutes away."""
    rng = np.random.default_rng(5)
    runtime = ToyRuntime()
    applier = Applier(runtime, runtime.catalogue)
    old = random_version(runtime.catalogue, rng)
    applier.prewarm()
    applier.restore(old, audit_of(runtime.catalogue, old))
    items = delta_items(runtime.catalogue, old, changed_version(runtime.catalogue, old, rng, 0.3))
    payload = payload_of(runtime.catalogue, items)
    arrays = [weakref.ref(array) for item in payload.items for array in (item.positions, item.values)]
    applier.begin(clean=True)
    applier.apply(payload)
    applier.synchronize()
    applier.check()
    del payload
    gc.collect()
    assert [array for array in arrays if array() is not None] == []


@pytest.mark.parametrize("method", ["hook", "auto"])
def test_memory_is_flat(method: MethodName) -> None:
    assert grows_by(method, 16) < ROOM_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("method", ["hook", "auto"])
def test_memory_is_flat_over_a_thousand_refits(method: MethodName) -> None:
    assert grows_by(method, 1000) < ROOM_BYTES
