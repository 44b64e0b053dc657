"""What learning makes of loaders that break a condition of Table A.2: another method, or refused by name."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from typing_extensions import override

from dcr.errors import UnsupportedPath
from dcr.model import PathClass
from dcr.receiver.join import join
from dcr.receiver.placement import PlacementTable
from dcr.receiver.prewarm import learn
from dcr.receiver.rank import Method
from dcr.testing import misbehaviour as bad
from dcr.testing.deltas import random_version
from dcr.testing.native_loader_suite import dense_load, storage_bytes
from dcr.testing.torture import Load, Pattern, TortureRuntime, named, zeros
from dcr.testing.toy_runtime import Misbehaviour, ToyRuntime

Q = "q.weight"


def _loaded() -> ToyRuntime:
    runtime = ToyRuntime()
    dense_load(runtime, runtime.catalogue, random_version(runtime.catalogue, np.random.default_rng(3)))
    return runtime


def _learned(runtime: ToyRuntime, misbehave: Misbehaviour) -> PlacementTable:
    """Learn with ``misbehave`` in place of the tensor Q; nothing resident may change."""
    runtime.hostile[Q] = misbehave
    before = storage_bytes(runtime)
    table = learn(runtime, runtime.catalogue)
    assert storage_bytes(runtime) == before
    return table


def _require(table: PlacementTable) -> None:
    join([table.rank_placement], table.specs).require_supported()


REFUSED: list[tuple[Misbehaviour, str]] = [
    (bad.no_copy, r"q\.weight: no rank places it"),
    (bad.half_copy, r"q\.weight: 8 of its 16 elements lie on none"),
    (
        bad.elsewhere,
        r"q\.weight \(rank 0 of 1\): its bytes in 'qkv' are also written by [kv]\.weight with other contents",
    ),
    (bad.write_outside, r"q\.weight \(rank 0 of 1\): .*add_.*'decay'.*only copies and constant fills"),
    (bad.list_write, r"q\.weight \(rank 0 of 1\): .*_foreach_mul_.*'down'"),
    (
        bad.conditional,
        r"q\.weight \(rank 0 of 1\): .*decides by the values that it is given where it stores them",
    ),
    (bad.set_storage, r"q\.weight \(rank 0 of 1\): .*set_.*'down'"),
    (bad.swallows, r"q\.weight \(rank 0 of 1\): .*add_.*'decay'"),
    (bad.hidden_cache, r"q\.weight \(rank 0 of 1\): .*storage that resident\(\) does not list"),
    (bad.raises, r"q\.weight \(rank 0 of 1\): the loader raised RuntimeError: out of patience"),
    (bad.rebinds, r"q\.weight \(rank 0 of 1\): the loader rebinds resident 'down'.*put back now"),
]


@pytest.mark.parametrize(("misbehave", "reason"), REFUSED, ids=[m.__name__ for m, _ in REFUSED])
def test_refused_in_advance(misbehave: Misbehaviour, reason: str) -> None:
    with pytest.raises(UnsupportedPath, match=reason):
        _require(_learned(_loaded(), misbehave))


OTHERWISE: list[tuple[Misbehaviour, Method, PathClass, str]] = [
    (bad.second_copy, Method.LEARNED, PathClass.OVERWRITE, ""),
    (bad.fill_live, Method.LEARNED, PathClass.XOR, ""),
    (bad.made_contiguous, Method.LEARNED, PathClass.XOR, ""),
    (bad.reinterpreted, Method.LEARNED, PathClass.XOR, ""),
    (bad.permuted_rows, Method.LEARNED, PathClass.XOR, ""),
    (bad.out_write, Method.WHOLE, PathClass.XOR, "composed: aten.add.out"),
    (bad.indexed_write, Method.WHOLE, PathClass.XOR, "composed: aten.index_put_.default"),
    (bad.computed, Method.WHOLE, PathClass.XOR, "composed: aten.copy_.default"),
    (bad.negated_view, Method.WHOLE, PathClass.XOR, "composed: aten.copy_.default"),
    (bad.changes_input, Method.WHOLE, PathClass.XOR, "composed: aten.copy_.default"),
]


@pytest.mark.parametrize(
    ("misbehave", "method", "path", "reason"), OTHERWISE, ids=[entry[0].__name__ for entry in OTHERWISE]
)
def test_taken_otherwise(misbehave: Misbehaviour, method: Method, path: PathClass, reason: str) -> None:
    table = _learned(_loaded(), misbehave)
    _require(table)
    assert (table.paths[Q].method, table.paths[Q].path) == (method, path)
    assert table.paths[Q].reason.startswith(reason)
    assert [name for name, group in table.together.items() if Q in group] == ([Q] if reason else [])


def test_writes_past_the_hook_are_noticed() -> None:
    runtime = _loaded()
    runtime.hostile[Q] = bad.through_numpy
    with pytest.raises(UnsupportedPath, match="resident 'decay' past the dispatch hook"):
        learn(runtime, runtime.catalogue)


def test_unreached_parameters_are_refused() -> None:
    runtime = _loaded()
    runtime._tensors["stray"] = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    with pytest.raises(UnsupportedPath, match=r"stray .*: no canonical tensor reaches this parameter"):
        _require(learn(runtime, runtime.catalogue))


def test_a_part_that_no_tensor_reaches_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Q is packed with K and V, and the catalogue does not have it: its rows stay as they were loaded."""
    runtime = _loaded()
    learn(runtime, runtime.catalogue)
    assert not caplog.records
    tensors = tuple(spec for spec in runtime.catalogue.tensors if spec.name != Q)
    learn(runtime, replace(runtime.catalogue, tensors=tensors))
    (told,) = (record.getMessage() for record in caplog.records)
    size = next(spec.num_bytes for spec in runtime.catalogue.tensors if spec.name == Q)
    assert told.startswith(f"qkv: {size} of ")


def test_every_refused_tensor_and_the_remedy_are_named() -> None:
    runtime = _loaded()
    runtime.hostile = {Q: bad.rebinds, "k.weight": bad.write_outside}
    with pytest.raises(UnsupportedPath, match=r"2 refusals: q\.weight .*; k\.weight .*Use dense refits"):
        _require(learn(runtime, runtime.catalogue))


def test_what_the_adapter_refuses_is_refused() -> None:
    class Quantized(ToyRuntime):
        @override
        def refusals(self) -> dict[str, str]:
            return {Q: "is quantized; serve bfloat16", "down": "is packed; turn packing off"}

    with pytest.raises(
        UnsupportedPath, match=r"down .*: is packed; .*q\.weight .*: is quantized; serve bfloat16"
    ):
        _require(learn(Quantized(), ToyRuntime().catalogue))


def test_a_tied_name_in_one_storage_takes_overwrites() -> None:
    runtime = ToyRuntime(tied=True)
    table = learn(runtime, runtime.catalogue)
    for name in ("embed.weight", "head.weight"):
        assert (table.paths[name].method, table.paths[name].path) == (Method.LEARNED, PathClass.OVERWRITE)


def test_equal_paths_are_one_object() -> None:
    """Layers are alike: a model of many tensors has few paths."""
    table = learn(_loaded(), ToyRuntime().catalogue)
    assert table.paths["gate.weight"] is table.paths["up.weight"]


def test_copies_are_kept_where_the_hook_is_asked_for() -> None:
    runtime = _loaded()
    runtime.hostile[Q] = bad.made_contiguous
    assert not learn(runtime, runtime.catalogue).copies
    asked = learn(runtime, runtime.catalogue, keep_copies=True)
    learned = {name for name, path in asked.paths.items() if path.method is Method.LEARNED}
    assert asked.copies.keys() == learned - {Q}


class Counting(ToyRuntime):
    """Counts ``load`` calls; raises for tensors in ``unknown``; ``refused`` is known in advance."""

    calls = 0
    refused: Mapping[str, str] = {}
    unknown: frozenset[str] = frozenset()

    @override
    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        self.calls += 1
        super().load(self._known(weights))

    @override
    def refusals(self) -> dict[str, str]:
        return dict(self.refused)

    def _known(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in weights:
            if name in self.unknown:
                raise ValueError(f"no module named {name}")
            yield name, weight


def test_all_tensors_are_learned_in_two_calls() -> None:
    runtime = Counting(tiny=True)
    table = learn(runtime, runtime.catalogue)
    assert {path.method for path in table.paths.values()} == {Method.LEARNED}
    assert runtime.calls == 2
    assert table.streamable


def test_values_that_are_read_cost_four_more_calls_and_what_cannot_be_read_back_one() -> None:
    runtime = Counting()
    table = learn(runtime, runtime.catalogue)
    assert table.paths["number"].method is Method.LEARNED
    assert table.loses_bits("number")
    assert runtime.calls == 7


def test_a_loader_that_refuses_in_advance_is_not_asked_to_load() -> None:
    runtime = Counting()
    runtime.refused = {"the model": "derives weights after loading", Q: "is packed"}
    table = learn(runtime, runtime.catalogue)
    assert runtime.calls == 0
    with pytest.raises(UnsupportedPath, match=r"2 refusals: the model .* derives .*; q\.weight .* is packed"):
        _require(table)


def test_learning_goes_on_behind_a_tensor_that_the_loader_does_not_know() -> None:
    runtime = Counting()
    runtime.unknown = frozenset({"expert.weight"})  # skips() says that it is placed nowhere
    table = learn(runtime, runtime.catalogue)
    _require(table)
    assert table.paths["expert.weight"].skipped
    assert runtime.calls == 8


def test_an_error_of_a_loader_that_collects_the_stream_costs_a_call_a_tensor() -> None:
    runtime = Counting(batching=True)
    runtime.hostile[Q] = bad.raises
    table = learn(runtime, runtime.catalogue)
    assert "out of patience" in table.paths[Q].refusal
    assert table.paths["k.weight"].method is Method.LEARNED
    assert not table.streamable


def _only_beside(other: str) -> Load:
    """Casts every tensor where it belongs, and "t7" only after ``other``."""

    def load(runtime: TortureRuntime, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        seen = set()
        for name, weight in weights:
            seen.add(name)
            if name == "n":
                runtime.place(name, weight)
            elif name != "t7" or other in seen:
                runtime[name].copy_(weight)

    return load


@pytest.mark.parametrize("num", [9, 70])
def test_who_needs_another_tensor_is_refused_alone(num: int) -> None:
    """Few tensors that go whole are tried one by one, many by halves; the others are as they were."""
    names = [f"t{number}" for number in range(num)]
    pattern = Pattern(
        "only_beside",
        load=_only_beside("t3"),
        resident=zeros(**dict.fromkeys(names, (8, 8))),
        specs=named(*names, dtype="float32"),
    )
    table = learn(TortureRuntime(pattern), pattern.catalogue)
    refused = {name for name, path in table.paths.items() if path.refusal}
    assert refused == {"t7"}
    assert "which other tensors come along" in table.paths["t7"].refusal


def _takes_positive(runtime: TortureRuntime, weight: torch.Tensor) -> None:
    assert bool((weight > 0).all())
    runtime["target"].copy_(weight if bool(weight.float().mean() > 2) else weight.t())


def test_one_accepted_content_shows_nothing() -> None:
    pattern = Pattern("takes_positive", _takes_positive)
    table = learn(TortureRuntime(pattern), pattern.catalogue)
    assert table.paths["w"].method is Method.WHOLE
    assert table.paths["w"].reason == "the loader decides by the values that it is given"
