"""Loaders that break a condition of Table A.2 after prewarm: the attempt fails, by name."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from typing_extensions import override

from dcr import observe
from dcr.errors import AttemptFailed
from dcr.model import PathClass
from dcr.receiver.apply import Applier
from dcr.testing import misbehaviour as bad
from dcr.testing.deltas import Version, changed_version, delta_items, payload_of, random_version
from dcr.testing.native_loader_suite import dense_load, storage_bytes
from dcr.testing.toy_runtime import Misbehaviour, ToyRuntime

Q = "q.weight"

def test_copying_twice_takes_overwrites_only() -> None:
    runtime, old, new = _loaded()
    runtime.hostile[Q] = bad.second_copy
    applier = Applier(runtime, runtime.catalogue)
    classes = applier.prewarm()
    assert classes[Q] is PathClass.OVERWRITE
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, classes)))
    applier.check()
    dense = ToyRuntime()
    dense_load(dense, dense.catalogue, old)
    dense_load(dense, dense.catalogue, new)
    assert storage_bytes(runtime) == storage_bytes(dense)


def test_rows_copied_one_by_one_take_xor() -> None:
    runtime, old, new = _loaded()
    runtime.hostile[Q] = bad.permuted_rows
    applier = Applier(runtime, runtime.catalogue)
    classes = applier.prewarm()
    assert classes[Q] is PathClass.XOR
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, classes)))
    applier.check()


AT_RUN_TIME: list[tuple[Misbehaviour, str]] = [
    (bad.second_copy, r"prewarm saw 1 copies of this tensor, not more"),
    (bad.no_copy, r"q\.weight: the loader made 0 of 1 copies"),
    (bad.half_copy, r"does not lie where prewarm saw it"),
    (bad.elsewhere, r"does not lie where prewarm saw it"),
    (bad.permuted_rows, r"does not lie where prewarm saw it"),
    (bad.reinterpreted, r"does not lie where prewarm saw it"),
    (bad.write_outside, r"'decay'.*only copy_"),
    (bad.list_write, r"_foreach_mul_"),
    (bad.out_write, r"add\.out"),
    (bad.indexed_write, r"index_put_"),
    (bad.fill_live, r"'qkv': it would overwrite live contents with 0"),
    (bad.computed, r"the source was computed"),
    (bad.made_contiguous, r"the source was computed"),
    (bad.negated_view, r"lazily negated"),
    (bad.changes_input, r"changes the tensor that was passed in"),
    (bad.set_storage, r"'down'"),
    (bad.swallows, r"'decay'.*only copy_"),
    (bad.rebinds, r"resident 'down' was rebound"),
]


@pytest.mark.parametrize("xor", [True, False], ids=["xor", "overwrite"])
@pytest.mark.parametrize(("misbehave", "reason"), AT_RUN_TIME, ids=[m.__name__ for m, _ in AT_RUN_TIME])
def test_a_breach_fails_the_attempt_and_writes_nothing_else(
    misbehave: Misbehaviour, reason: str, xor: bool
) -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    classes = applier.prewarm()
    items = delta_items(runtime.catalogue, old, new, classes if xor else None)
    runtime.hostile[Q] = misbehave
    before = storage_bytes(runtime)
    with pytest.raises(AttemptFailed, match=reason):
        applier.apply(payload_of(runtime.catalogue, [item for item in items if item.name == Q]))
    after = storage_bytes(runtime)
    assert {name for name in before if after[name] != before[name]} <= {"qkv"}


def test_retry_succeeds_once_the_loader_behaves() -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    classes = applier.prewarm()
    runtime.hostile["k.weight"] = bad.raises
    with pytest.raises(RuntimeError, match="out of patience"):
        applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, classes)))
    runtime.hostile.clear()
    applier.begin()
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new)), allow_xor=False)
    applier.check()
    dense = ToyRuntime()
    dense_load(dense, dense.catalogue, new)
    dense.data("padded")[5:] = 0
    assert storage_bytes(runtime) == storage_bytes(dense)


@pytest.mark.parametrize("stage", ["receiver.item.before", "receiver.item.copy", "receiver.item.after"])
@pytest.mark.parametrize("at", range(6))
def test_a_fault_at_any_item_is_repaired_by_overwrites(stage: str, at: int) -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    mixed = payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, applier.prewarm()))
    with observe.listening(_fail_at(stage, at)), pytest.raises(KeyboardInterrupt):
        applier.apply(mixed)
    applier.begin()
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new)), allow_xor=False)
    applier.check()
    dense = ToyRuntime()
    dense_load(dense, dense.catalogue, new)
    assert storage_bytes(runtime) == storage_bytes(dense)


def test_cancelling_stops_between_items() -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    asked = iter([False, True])
    with pytest.raises(AttemptFailed, match="was stopped before this item"):
        applier.apply(payload_of(runtime.catalogue, items), cancelled=lambda: next(asked))
    applier.begin()
    applier.apply(payload_of(runtime.catalogue, items[1:]))  # the first was finished, the second not begun
    applier.check()


def test_a_check_sees_bits_that_change_afterwards() -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, applier.prewarm())))
    changed = np.flatnonzero(old[Q] != new[Q])
    runtime.data("qkv").view(torch.int16).view(-1)[int(changed[0])] ^= 1
    with pytest.raises(AttemptFailed, match=r"q\.weight: written bits have the audit digest"):
        applier.check()


def test_a_check_sees_a_wrong_cast() -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, applier.prewarm())))
    runtime.data("decay").view(torch.int32).bitwise_xor_(1)
    with pytest.raises(AttemptFailed, match="decay: 'decay' does not hold the cast"):
        applier.check()


def _loaded() -> tuple[ToyRuntime, Version, Version]:
    rng = np.random.default_rng(11)
    runtime = ToyRuntime()
    old = random_version(runtime.catalogue, rng)
    dense_load(runtime, runtime.catalogue, old)
    return runtime, old, changed_version(runtime.catalogue, old, rng, 0.5)


def _fail_at(stage: str, at: int) -> Callable[[observe.Event], None]:
    left = iter([False] * at + [True])

    def listen(event: observe.Event) -> None:
        if event.name == stage and next(left, False):
            raise KeyboardInterrupt

    return listen


class Prefetching(ToyRuntime):
    """Asks for the next tensor before it has copied the last, as a pipelined loader does."""

    @override
    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        held: tuple[str, torch.Tensor] | None = None
        for step in weights:
            if held is not None:
                super().load([held])
            held = step
        if held is not None:
            super().load([held])


@pytest.mark.parametrize(
    ("runtime", "streamable"),
    [(ToyRuntime(), True), (ToyRuntime(batching=True), False), (Prefetching(), False)],
    ids=["plain", "batching", "prefetching"],
)
def test_streaming_is_used_only_where_prewarm_proved_it(runtime: ToyRuntime, streamable: bool) -> None:
    rng = np.random.default_rng(1)
    old = random_version(runtime.catalogue, rng)
    new = changed_version(runtime.catalogue, old, rng, 0.5)
    dense_load(runtime, runtime.catalogue, old)
    applier = Applier(runtime, runtime.catalogue)
    classes = applier.prewarm()
    assert applier.placement.streamable is streamable
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, classes)))
    applier.check()
    dense = ToyRuntime()
    dense_load(dense, dense.catalogue, new)
    assert storage_bytes(runtime) == storage_bytes(dense)


def test_a_loader_that_starts_to_prefetch_fails_the_attempt() -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    runtime.__class__ = Prefetching
    with pytest.raises(AttemptFailed, match="made 0 of 1 copies"):
        applier.apply(payload_of(runtime.catalogue, items))


def test_one_load_call_a_payload() -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    honest, calls = runtime.load, []

    def counted(weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        calls.append(1)
        honest(weights)

    runtime.load = counted  # type: ignore[method-assign]
    applier.apply(payload_of(runtime.catalogue, items))
    assert (len(items) > 5, len(calls)) == (True, 1)


def test_views_are_fresh_for_each_item() -> None:
    runtime, old, new = _loaded()
    applier = Applier(runtime, runtime.catalogue)
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    marked: list[bool] = []

    def mark(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
        marked.append(hasattr(weight, "shard_id"))
        weight.shard_id = name  # type: ignore[attr-defined]
        runtime.place(name, weight)

    runtime.hostile = dict.fromkeys(("q.weight", "k.weight", "v.weight"), mark)
    applier.apply(payload_of(runtime.catalogue, items))
    assert marked == [False, False, False]
