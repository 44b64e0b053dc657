"""Loaders that break a condition of Table A.2 after prewarm: the attempt fails, by name."""

from collections.abc import Callable, Iterable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from typing_extensions import override

from dcr import observe
from dcr.errors import AttemptFailed, UnsupportedPath
from dcr.model import Encoding, PathClass, TensorSpec, stored_bits
from dcr.receiver.apply import Applier
from dcr.receiver.copy_hook import ApplyHook
from dcr.receiver.geometry import describe_copy
from dcr.receiver.methods import MethodName
from dcr.receiver.rank import Method
from dcr.receiver.scratch import Scratch
from dcr.receiver.storages import Storages
from dcr.testing import misbehaviour as bad
from dcr.testing.deltas import (
    Version,
    audit_of,
    changed_version,
    delta_items,
    payload_of,
    random_version,
)
from dcr.testing.native_loader_suite import dense_load, storage_bytes, take
from dcr.testing.toy_runtime import Misbehaviour, ToyRuntime

Q = "q.weight"


@pytest.mark.parametrize("method", ["hook", "auto"])
def test_copying_twice_takes_overwrites_only(method: MethodName) -> None:
    runtime, applier, old, new = _loaded(method, {Q: bad.second_copy})
    classes = applier.prewarm()
    assert classes[Q] is PathClass.OVERWRITE
    take(applier, runtime.catalogue, delta_items(runtime.catalogue, old, new, classes))
    assert storage_bytes(runtime) == _dense(old, new)


@pytest.mark.parametrize("method", ["hook", "auto"])
def test_rows_copied_one_by_one_take_xor(method: MethodName) -> None:
    runtime, applier, old, new = _loaded(method, {Q: bad.permuted_rows})
    classes = applier.prewarm()
    assert classes[Q] is PathClass.XOR
    take(applier, runtime.catalogue, delta_items(runtime.catalogue, old, new, classes))


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


KINDS = [*Encoding]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("misbehave", "reason"), AT_RUN_TIME, ids=[m.__name__ for m, _ in AT_RUN_TIME])
def test_a_breach_fails_the_attempt_and_writes_nothing_else(
    misbehave: Misbehaviour, reason: str, kind: Encoding
) -> None:
    runtime, applier, old, new = _loaded()
    items = delta_items(runtime.catalogue, old, new, applier.prewarm(), difference=kind)
    runtime.hostile[Q] = misbehave
    before = storage_bytes(runtime)
    with pytest.raises(AttemptFailed, match=reason):
        applier.apply(payload_of(runtime.catalogue, [item for item in items if item.name == Q]))
    after = storage_bytes(runtime)
    assert {name for name in before if after[name] != before[name]} <= {"qkv"}


def test_retry_succeeds_once_the_loader_behaves() -> None:
    runtime, applier, old, new = _loaded()
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    runtime.hostile["k.weight"] = bad.raises
    with pytest.raises(RuntimeError, match="out of patience"):
        applier.apply(payload_of(runtime.catalogue, items))
    runtime.hostile.clear()
    take(applier, runtime.catalogue, delta_items(runtime.catalogue, old, new), allow_xor=False)
    assert storage_bytes(runtime) == _dense(old, new)


@pytest.mark.parametrize("method", ["hook", "auto"])
@pytest.mark.parametrize("stage", ["receiver.item.before", "receiver.item.copy", "receiver.item.after"])
@pytest.mark.parametrize("at", [0, 1, 5, 9, 12])
def test_a_fault_at_any_item_is_repaired_by_overwrites(stage: str, at: int, method: MethodName) -> None:
    """On the map, items are written in groups of eight: a fault falls before, between and after groups."""
    runtime, applier, old, new = _loaded(method)
    mixed = payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, applier.prewarm()))
    with observe.listening(_fail_at(stage, at)), pytest.raises(KeyboardInterrupt):
        applier.apply(mixed)
    assert storage_bytes(runtime) != _dense(old, new)
    take(applier, runtime.catalogue, delta_items(runtime.catalogue, old, new), allow_xor=False)
    assert storage_bytes(runtime) == _dense(old, new)


def test_cancelling_stops_between_items() -> None:
    runtime, applier, old, new = _loaded()
    items = [i for i in delta_items(runtime.catalogue, old, new, applier.prewarm()) if i.name != "number"]
    asked = iter([False, True])
    with pytest.raises(AttemptFailed, match="was stopped before this item"):
        applier.apply(payload_of(runtime.catalogue, items), cancelled=lambda: next(asked))
    take(applier, runtime.catalogue, items[1:])  # the first was finished, the second not begun


def test_cancelling_stops_between_groups_of_a_map() -> None:
    runtime, applier, old, new = _loaded("auto")
    paths = applier.rank.map.paths
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    items = [item for item in items if paths[item.name].method is Method.LEARNED]
    asked = iter([False, True])
    with pytest.raises(AttemptFailed, match=rf"{items[8].name}: the attempt was stopped before this item"):
        applier.apply(payload_of(runtime.catalogue, items), cancelled=lambda: next(asked))
    take(applier, runtime.catalogue, items[8:])


@pytest.mark.parametrize("method", ["hook", "auto"])
def test_a_check_sees_bits_that_change_afterwards(method: MethodName) -> None:
    runtime, applier, old, new = _loaded(method)
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, applier.prewarm())))
    applier.synchronize()
    changed = np.flatnonzero(old[Q] != new[Q])
    runtime.data("qkv").view(torch.int16).view(-1)[int(changed[0])] ^= 1
    with pytest.raises(AttemptFailed, match=r"q\.weight: written bits .* have the audit digest"):
        applier.check()


@pytest.mark.parametrize("method", ["hook", "auto"])
def test_a_check_sees_a_wrong_cast(method: MethodName) -> None:
    """The flipped bit vanishes in a cast back to BF16."""
    runtime, applier, old, new = _loaded(method)
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, applier.prewarm())))
    applier.synchronize()
    runtime.data("decay").view(torch.int32).bitwise_xor_(1)
    with pytest.raises(AttemptFailed, match="decay: the copy in 'decay' does not hold what was written"):
        applier.check()


@pytest.mark.parametrize("method", ["hook", "auto"])
def test_a_check_compares_every_replica(method: MethodName) -> None:
    runtime, applier, old, new = _loaded(method)
    applier.apply(payload_of(runtime.catalogue, delta_items(runtime.catalogue, old, new, applier.prewarm())))
    applier.synchronize()
    changed = int(np.flatnonzero(old["repeated"] != new["repeated"])[0])
    runtime.data("repeated").view(torch.int16)[2, changed] ^= 1
    with pytest.raises(AttemptFailed, match="repeated: the copy in 'repeated' does not hold"):
        applier.check()


@pytest.mark.parametrize("method", ["hook", "auto"])
def test_a_check_sees_a_whole_tensor_that_was_not_stored(method: MethodName) -> None:
    """``number`` goes through a Python number: only the loader itself can say what it stores."""
    runtime, applier, old, new = _loaded(method)
    assert applier.rank.map.shadowed == ("number",)
    new["number"] = old["number"] ^ np.uint16(1)
    items = [i for i in delta_items(runtime.catalogue, old, new, applier.prewarm()) if i.name == "number"]
    applier.apply(payload_of(runtime.catalogue, items))
    applier.synchronize()
    runtime.data("number").view(torch.int16)[0] ^= 1
    with pytest.raises(AttemptFailed, match=r"number: \['number'\] do not hold what the loader makes"):
        applier.check()


def test_a_loader_that_repacks_is_refused_at_restore() -> None:
    """The base-value gate: storage of the right shape that holds something else."""

    class Repacking(ToyRuntime):
        @override
        def synchronize(self) -> None:
            for name in ("down", "gate_up"):
                self.data(name).copy_(self.data(name).flip(0))

    runtime, rng = Repacking(), np.random.default_rng(2)
    version = random_version(runtime.catalogue, rng)
    applier = Applier(runtime, runtime.catalogue)
    applier.prewarm()
    with pytest.raises(UnsupportedPath, match=r"gate\.weight, up\.weight, down\.weight: storage does not"):
        applier.restore(version, audit_of(runtime.catalogue, version))


def _loaded(
    method: MethodName = "hook", hostile: dict[str, Misbehaviour] | None = None
) -> tuple[ToyRuntime, Applier, Version, Version]:
    """A runtime that holds the old version, proven; about half of the elements differ in the new one."""
    rng = np.random.default_rng(11)
    runtime = ToyRuntime()
    runtime.hostile.update(hostile or {})
    old = random_version(runtime.catalogue, rng)
    applier = Applier(runtime, runtime.catalogue, method=method)
    applier.prewarm()
    applier.restore(old, audit_of(runtime.catalogue, old))
    applier.begin(clean=True)
    return runtime, applier, old, changed_version(runtime.catalogue, old, rng, 0.5)


def _dense(*versions: Version) -> dict[str, bytes]:
    """Storage after dense loads by an honest loader."""
    runtime = ToyRuntime()
    for version in versions:
        dense_load(runtime, runtime.catalogue, version)
    return storage_bytes(runtime)


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
    applier = Applier(runtime, runtime.catalogue, method="hook")
    classes = applier.prewarm()
    applier.restore(old, audit_of(runtime.catalogue, old))
    assert applier.rank.map.table.streamable is streamable
    take(applier, runtime.catalogue, delta_items(runtime.catalogue, old, new, classes))
    assert storage_bytes(runtime) == _dense(old, new)


def test_a_loader_that_starts_to_prefetch_fails_the_attempt() -> None:
    runtime, applier, old, new = _loaded()
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    runtime.__class__ = Prefetching
    with pytest.raises(AttemptFailed, match="made 0 of 1 copies"):
        applier.apply(payload_of(runtime.catalogue, items))


@pytest.mark.parametrize(("method", "num_calls"), [("hook", 1), ("auto", 0)])
def test_one_load_call_a_payload(method: MethodName, num_calls: int) -> None:
    runtime, applier, old, new = _loaded(method)
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    honest, calls = runtime.load, []

    def counted(weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        calls.append(1)
        honest(weights)

    runtime.load = counted  # type: ignore[method-assign]
    applier.apply(payload_of(runtime.catalogue, items))
    assert (len(items) > 5, len(calls)) == (True, num_calls)


def test_views_are_fresh_for_each_item() -> None:
    marked: list[bool] = []

    def mark(runtime: ToyRuntime, name: str, weight: torch.Tensor) -> None:
        marked.append(hasattr(weight, "shard_id"))
        weight.shard_id = name  # type: ignore[attr-defined]
        runtime.place(name, weight)

    runtime, applier, old, new = _loaded()
    items = delta_items(runtime.catalogue, old, new, applier.prewarm())
    runtime.hostile = dict.fromkeys(("q.weight", "k.weight", "v.weight"), mark)
    applier.apply(payload_of(runtime.catalogue, items))
    assert marked == [False, False, False]


@pytest.mark.parametrize("composed", [True, False])
def test_a_composed_load_goes_through_the_first_copys_mask(composed: bool) -> None:
    """The paper's rule: ``A.copy_(w); A.copy_(-exp(A))``; without it, such a copy is a breach."""
    resident = torch.arange(6, dtype=torch.float32)
    storages, spec = Storages({"a": resident}), TensorSpec("t", (6,), "bfloat16")
    scratch = Scratch.for_tensors((spec,))
    at = np.array([1, 4], dtype=np.int64)
    values = stored_bits(torch.tensor([0.5, -2.0], dtype=torch.bfloat16))
    wanted = resident.clone()
    wanted[at] = -torch.exp(torch.tensor([0.5, -2.0]))
    hook = ApplyHook(storages, scratch, composed=composed)
    scratch.fill(spec, Encoding.OVERWRITE, at, values)
    hook.begin("t", Encoding.OVERWRITE, (describe_copy("a", resident, scratch.view(spec)),))
    refused = nullcontext() if composed else pytest.raises(AttemptFailed, match="the source was computed")
    with refused, hook:
        resident.copy_(scratch.view(spec))
        resident.copy_(-torch.exp(resident))
    assert torch.equal(resident, wanted) is composed


def test_delta16_through_a_byte_view_fails() -> None:
    """A carry would leave its element."""
    resident = torch.zeros(8, dtype=torch.uint8)
    storages, spec = Storages({"a": resident}), TensorSpec("t", (4,), "bfloat16")
    scratch = Scratch.for_tensors((spec,))
    scratch.fill(spec, Encoding.DELTA16, np.array([1]), np.array([257], dtype=np.uint16))
    as_bytes = scratch.view(spec).view(torch.uint8)
    hook = ApplyHook(storages, scratch)
    hook.begin("t", Encoding.DELTA16, (describe_copy("a", resident, as_bytes),))
    with pytest.raises(AttemptFailed, match="delta16 needs lanes of 2 bytes"), hook:
        resident.copy_(scratch.view(spec).view(torch.uint8))
    assert not resident.any()
