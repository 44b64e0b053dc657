"""Owners of fused, padded and split weights send exactly what changed, for every layout (DESIGN R1, R4, R6).

The oracle gathers and converts whole tensors and knows no index map. Layouts have vocabularies that no
number of ranks divides, fewer query groups than ranks, tied embeddings, parameters larger than a bucket,
and ranks that own nothing of a tensor, or nothing at all.
"""

from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dcr.codec import Item, decode_payload
from dcr.codec.choice import CODECS
from dcr.config import CodecConfig
from dcr.model import (
    AttemptId,
    Bits,
    Catalogue,
    OwnerClose,
    PathClass,
    PayloadRef,
    TensorSpec,
    stored_bits,
)
from dcr.source import Baseline
from dcr.source.candidate import Candidate
from dcr.source.convert import Converter
from dcr.source.publish import Lane, Work, publish_payloads
from dcr.source.representation import FirstAttempt, Representation, Retry
from dcr.source.shares import OWNERSHIPS, OwnedShards
from dcr.testing.toy_fleet import apply_items
from dcr_recipes.bench.fused import Fused
from dcr_recipes.bench.fused_model import FusedModel, Projected

KEY, RUN = "5a" * 16, "0" * 32
Tensors = dict[str, Bits]
Owners = list[tuple[OwnedShards, Baseline]]


@dataclass(slots=True)
class Kept:
    """An outlet that keeps what is published."""

    payloads: list[bytes] = field(default_factory=list)

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        self.payloads.append(data)

    def close(self, close: OwnerClose) -> None:
        pass


@st.composite
def layouts(draw: st.DrawFn) -> tuple[int, tuple[Fused, ...]]:
    """Ranks, and a few parameters of every kind."""
    ranks = draw(st.integers(1, 5))
    hidden = draw(st.integers(1, 6))
    groups, queries = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    head = ranks * draw(st.integers(1, 2))  # ranks may hold a part of a group only
    vocabulary = draw(st.integers(1, 300))
    aliases = ("head",) if draw(st.booleans()) else ()
    event(f"uneven: {vocabulary % ranks > 0}, groups < ranks: {groups < ranks}, tied: {bool(aliases)}")
    names = zip(("q", "k", "v"), (queries * head, head, head), strict=True)
    qkv = tuple(_spec(name, groups * rows, hidden) for name, rows in names)
    every = (
        Fused("embedding", "vocabulary", (replace(_spec("embedding", vocabulary, hidden), aliases=aliases),)),
        Fused("qkv", "qkv", qkv, (queries * head, head, head)),
        Fused("gate_up", "gated", (_spec("gate", 2 * ranks, hidden), _spec("up", 2 * ranks, hidden))),
        Fused("down", "row", (_spec("down", hidden, 3 * ranks),)),
        Fused("norm", "replicated", (_spec("norm", hidden),)),
        Fused("router", "replicated", (_spec("router", draw(st.integers(1, 3000)), hidden),)),
    )
    chosen = draw(st.sets(st.sampled_from(every), min_size=1) if draw(st.booleans()) else st.just(set(every)))
    return ranks, tuple(each for each in every if each in chosen)


def _spec(name: str, *shape: int) -> TensorSpec:
    return TensorSpec(name, shape, "bfloat16")


def model_of(layout: tuple[int, tuple[Fused, ...]], rng: np.random.Generator) -> FusedModel:
    """Random words, padding too."""
    ranks, parameters = layout
    words = []
    for parameter in parameters:
        size = int(np.prod(parameter.local_shape(ranks)))
        copies = 1 if parameter.kind == "replicated" else ranks
        words.append(tuple(rng.integers(0, 1 << 16, size, dtype=np.uint16) for _ in range(copies)))
    return FusedModel(ranks, parameters, tuple(words), {})


def canonical(model: FusedModel) -> Tensors:
    """Gathered and converted."""
    return {
        name: stored_bits(tensor).copy()
        for number, parameter in enumerate(model.parameters)
        for name, tensor in parameter.convert(model.shards(number)).items()
    }


def sent(owners: Owners, way: Representation, codec: CodecConfig) -> tuple[list[Item], int]:
    """Items of all owners, and how many elements they say changed."""
    items: list[Item] = []
    changed = 0
    for rank, (source, baseline) in enumerate(owners):
        catalogue = Catalogue(run=RUN, audit_key=KEY, tensors=source.tensors())
        specs = catalogue.by_name()
        classes = dict.fromkeys(specs, PathClass.XOR)
        convert = Converter(source, baseline, specs, KEY).changes(Candidate(1, "", rank), way, classes)
        kept = Kept()
        lane = Lane(rank, RUN, catalogue.digest(), (), codec, kept)
        close = publish_payloads(Work(AttemptId(1, 1), 0, baseline.tasks, convert, lambda: None), lane)
        items += [item for data in kept.payloads for item in decode_payload(data).items]
        changed += close.num_changed
    return items, changed


@settings(max_examples=15)
@given(layouts(), st.sampled_from(OWNERSHIPS), st.integers(0, 1 << 30), st.data())
def test_every_changed_element_is_sent_once_and_nothing_else(
    layout: tuple[int, tuple[Fused, ...]], ownership: str, seed: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(seed)
    model = model_of(layout, rng)
    codec = CodecConfig(
        name=data.draw(st.sampled_from(CODECS)),
        chunk_mib=0,
        bucket_mib=0,
        threads=data.draw(st.integers(1, 2)),
    )  # every task is a payload of its own, larger than its bucket
    first = FirstAttempt(dict.fromkeys(all_names(model), PathClass.XOR), codec.name)
    way = Retry() if data.draw(st.booleans()) else first
    with TemporaryDirectory() as folder:
        owners = owners_of(model, ownership, Path(folder))
        refit(model, owners, (way, codec), (data.draw(st.sampled_from([0.0, 0.02, 0.5, 1.0])), rng))


@pytest.mark.parametrize("ownership", OWNERSHIPS)
def test_a_rank_may_own_nothing(tmp_path: Path, ownership: str) -> None:
    """Its shard of the vocabulary is padding, and so much of a tiny norm is another's."""
    rng = np.random.default_rng(0)
    parameters = (
        Fused("embedding", "vocabulary", (_spec("embedding", 5, 2),)),
        Fused("norm", "replicated", (_spec("norm", 2),)),
    )
    model = model_of((4, parameters), rng)
    owners = owners_of(model, ownership, tmp_path)
    assert [not baseline.tasks for _, baseline in owners].count(True) >= 2
    refit(model, owners, (Retry(), CodecConfig()), (0.5, rng))


def owners_of(model: FusedModel, ownership: str, folder: Path) -> Owners:
    """Sources and trackers of version 0, by rank."""
    owners = []
    for rank in range(model.num_ranks):
        source = OwnedShards(Projected(model, rank), rank, ownership=ownership)
        baseline = Baseline.create(folder / str(rank), source.tasks(), source.read, audit_key=KEY)
        owners.append((source, baseline))
    return owners


def refit(
    model: FusedModel,
    owners: Owners,
    way: tuple[Representation, CodecConfig],
    change: tuple[float, np.random.Generator],
) -> None:
    """Change the weights and compare what is sent with what changed; ``change`` is a rate and its chance."""
    old = canonical(model)
    flip(model, *change)
    items, changed = sent(owners, *way)
    new = canonical(model)
    assert changed == sum(int(np.count_nonzero(new[name] != old[name])) for name in old)
    check(model, items, old, new)


def all_names(model: FusedModel) -> list[str]:
    return [name for spec in model.specs for name in (spec.name, *spec.aliases)]


def flip(model: FusedModel, rate: float, rng: np.random.Generator) -> None:
    for copies in model.words:
        for words in copies:
            at = np.flatnonzero(rng.random(words.size) < rate)
            words[at] ^= rng.integers(1, 1 << 16, at.size, dtype=np.uint16)


def check(model: FusedModel, items: list[Item], old: Tensors, new: Tensors) -> None:
    """Both names of a tied tensor are brought to the new bits; no element of a name is sent twice."""
    primary = {name: spec.name for spec in model.specs for name in (spec.name, *spec.aliases)}
    got = apply_items(items, {name: old[first] for name, first in primary.items()})
    for name, first in primary.items():
        np.testing.assert_array_equal(got[name], new[first], err_msg=name)
    times: Counter[tuple[str, int]] = Counter()
    for item in items:
        times.update((item.name, at) for at in item.locations.tolist())
    assert not times or max(times.values()) == 1
