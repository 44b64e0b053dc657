"""Composed deltas have the effect of the deltas one after the other (DESIGN P14)."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr.codec import Item
from dcr.errors import ConfigError, IntegrityError
from dcr.model import Bits, Encoding
from dcr.testing.history import History, small_catalogue
from dcr.testing.toy_fleet import apply_items
from dcr.transport.compose import Composition, catch_up, compose
from dcr.transport.directory import DirectoryStore
from dcr.transport.memory import MemoryStore
from dcr.transport.values import combined

SIZE = 12
ENCODINGS = {"bfloat16": tuple(Encoding), "float32": (Encoding.OVERWRITE, Encoding.XOR)}


@st.composite
def items(draw: st.DrawFn, dtype: str) -> Item:
    where = sorted(draw(st.sets(st.integers(0, SIZE - 1))))
    width = 2 if dtype == "bfloat16" else 4
    value = st.integers(0, 256**width - 1)
    values = [draw(value) for _ in where]
    encoding = draw(st.sampled_from(ENCODINGS[dtype]))
    return Item("t", (SIZE,), dtype, encoding, np.array(where, np.int64), np.array(values, f"<u{width}"))


def one_by_one(given_items: list[Item], held: Bits) -> Bits:
    """The oracle: element by element, with no arrays."""
    out = held.copy()
    for item in given_items:
        for where, value in zip(item.locations, item.values, strict=True):
            out[where : where + 1] = combined(item.encoding, out[where : where + 1], np.array([value]))
    return out


@pytest.mark.parametrize("dtype", ENCODINGS)
@given(data=st.data())
def test_the_effect_is_that_of_all_items_in_order(dtype: str, data: st.DataObject) -> None:
    made = data.draw(st.lists(items(dtype), max_size=8))
    word = "<u2" if dtype == "bfloat16" else "<u4"
    held = np.random.default_rng(data.draw(st.integers(0, 9))).integers(0, 1 << 16, SIZE).astype(word)
    composed = compose(made)
    applied = apply_items([item for each in composed for item in each], {"t": held})
    assert np.array_equal(applied["t"], one_by_one(made, held))
    for items_of_pass in composed:
        located = np.concatenate([item.locations for item in items_of_pass])
        assert len(np.unique(located)) == len(located)
        assert all((np.diff(item.locations) > 0).all() for item in items_of_pass)
    touched = {int(where) for item in made for where in item.locations}
    assert {int(where) for each in composed for item in each for where in item.locations} == touched


@given(st.lists(items("float32"), max_size=8))
def test_without_differences_each_element_occurs_once(made: list[Item]) -> None:
    composed = compose(made)
    assert len(composed) <= 1
    entries = [item.num_entries for each in composed for item in each]
    assert len(entries) <= 2
    assert sum(entries) == len({int(w) for i in made for w in i.locations})


def test_a_mask_and_a_difference_need_two_passes_and_an_overwrite_ends_them() -> None:
    where, one = np.array([3], np.int64), np.array([1], "<u2")
    made = [Item("t", (SIZE,), "bfloat16", kind, where, one) for kind in (Encoding.XOR, Encoding.DELTA16)]
    assert [[item.encoding for item in each] for each in compose(made)] == [
        [Encoding.XOR],
        [Encoding.DELTA16],
    ]
    alternating = [[item.encoding for item in each] for each in compose(made * 3)]
    assert alternating == [[Encoding.XOR], [Encoding.DELTA16]] * 3
    last = Item("t", (SIZE,), "bfloat16", Encoding.OVERWRITE, where, one)
    assert compose([*made, last]) == [[last]]
    added = compose([last, *made])
    told = [[(item.encoding, item.values.tolist()) for item in each] for each in added]
    assert told == [[(Encoding.OVERWRITE, [1])]]


def test_items_of_another_tensor_are_refused() -> None:
    composition = Composition("t", (SIZE,), "bfloat16")
    with pytest.raises(ConfigError, match="an item of u cannot follow those of t"):
        composition.add(
            Item("u", (SIZE,), "bfloat16", Encoding.XOR, np.zeros(0, np.int64), np.zeros(0, "<u2"))
        )


def grown(history: History, num_versions: int, *, redraw: float = 0.3) -> History:
    """Versions of every encoding; each changes some elements of the last."""
    rng = np.random.default_rng(11)
    kinds = (Encoding.XOR, Encoding.OVERWRITE, Encoding.DELTA16)
    now = {
        spec.name: rng.integers(0, 256, spec.num_bytes, np.uint8).view(bits)
        for spec in history.catalogue.tensors
        for bits in [
            np.dtype(f"<u{spec.num_bytes // spec.num_elements}") if spec.num_elements else np.dtype("<u2")
        ]
    }
    for version in range(num_versions):
        history.commit(now, encoding=kinds[version % 3])
        now = {name: changed(bits, rng, redraw) for name, bits in now.items()}
    return history


def changed(bits: Bits, rng: np.random.Generator, redraw: float) -> Bits:
    fresh = rng.integers(0, 256, bits.nbytes, np.uint8).view(bits.dtype)
    return np.where(rng.random(bits.size) < redraw, fresh, bits)


@pytest.mark.parametrize("behind", [0, 1, 7, 50])
def test_one_delta_brings_a_receiver_any_number_of_versions_forward(behind: int) -> None:
    history = grown(History(MemoryStore(), small_catalogue()), 51)
    record, catalogue = history.records[-1], history.catalogue
    primary = [spec.name for spec in catalogue.tensors]
    passes = catch_up(history.archive, record, catalogue, since=50 - behind, names=primary)
    held = apply_items([item for each in passes for item in each], history.tensors[50 - behind])
    assert all(np.array_equal(held[name], history.tensors[-1][name]) for name in primary)
    part = catch_up(history.archive, record, catalogue, since=50 - behind, names=primary[:1])
    assert {item.name for each in part for item in each} <= set(primary[:1])


def test_a_missing_link_is_named(tmp_path: Path) -> None:
    history = grown(History(DirectoryStore(tmp_path), small_catalogue()), 5)
    next(tmp_path.glob("*/payload/3-9/0/0")).unlink()
    names = [spec.name for spec in history.catalogue.tensors]
    for since in (0, 2):
        with pytest.raises(IntegrityError, match="version 3: payload 0 of owner 0, attempt 3-9, is missing"):
            catch_up(history.archive, history.records[-1], history.catalogue, since=since, names=names)
    assert catch_up(history.archive, history.records[-1], history.catalogue, since=3, names=names)
    for since in (-1, 6):
        with pytest.raises(ConfigError, match="does not come before version 4"):
            catch_up(history.archive, history.records[-1], history.catalogue, since=since, names=names)
