"""A payload's columns say what its items say; items are refused as by the rule, whatever they claim."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcr.codec import Item, Payload, PayloadId
from dcr.codec.columns import ENCODINGS, columns_of
from dcr.errors import AttemptFailed
from dcr.model import AttemptId, Encoding, bits_dtype
from dcr.receiver.apply import RankApplier
from dcr.receiver.intake import Intake
from dcr.receiver.items import validate
from dcr.receiver.rank import Method
from dcr.testing.toy_runtime import ToyRuntime

_RUNTIME = ToyRuntime()
_RANK = RankApplier(_RUNTIME, _RUNTIME.catalogue)
_RANK.prewarm()
SPECS = _RUNTIME.catalogue.by_name()
INTAKE = Intake(_RANK.map, SPECS)


@st.composite
def items(draw: st.DrawFn) -> Item:
    """An item of a tensor of the toy runtime; each field is now and then another one's or out of range."""
    name = draw(st.sampled_from([*SPECS, *SPECS, "unknown"]))
    spec = SPECS.get(name, next(iter(SPECS.values())))
    shape = draw(st.sampled_from([spec.shape] * 6 + [(*spec.shape, 1)]))
    dtype = draw(st.sampled_from([spec.dtype] * 8 + ["float32", "bool"]))
    encoding = draw(st.sampled_from(list(Encoding)))
    reach = spec.num_elements + draw(st.sampled_from([0] * 6 + [1]))
    at = draw(st.lists(st.integers(0, max(reach - 1, 0)), max_size=min(reach, 5), unique=True))
    if draw(st.integers(0, 20)) == 0:
        at.append(-1)
    bits = bits_dtype(dtype)
    values = draw(st.lists(st.integers(0, 2), min_size=len(at), max_size=len(at)))
    return Item(name, shape, dtype, encoding, np.array(sorted(at), np.int64), np.array(values, bits))


def payload(found: list[Item]) -> Payload:
    return Payload(PayloadId("0" * 32, AttemptId(1, 1), 0, 0, 0, "0" * 32), "0" * 32, tuple(found))


def refused(found: list[Item], *, allow_xor: bool) -> str:
    """By the rule, item after item."""
    for item in found:
        try:
            validate(item, SPECS, _RANK.map.paths, allow_xor=allow_xor)
        except AttemptFailed as err:
            return str(err)
    return ""


@settings(max_examples=300)
@given(st.lists(items(), max_size=4), st.booleans())
def test_items_are_refused_as_by_the_rule(found: list[Item], allow_xor: bool) -> None:
    reason = refused(found, allow_xor=allow_xor)
    if reason:
        with pytest.raises(AttemptFailed) as err:
            INTAKE.take(payload(found), allow_xor=allow_xor)
        assert str(err.value) == reason
        return
    taken = INTAKE.take(payload(found), allow_xor=allow_xor)
    for i, item in enumerate(found):
        assert taken.going(_RANK.map.paths[item.name].method)[i]
        plain = item.name in _RANK.map.placed and _RANK.map.placed.plain(item.name)
        learned = _RANK.map.paths[item.name].method is Method.LEARNED
        assert (taken.rows[i] >= 0) == (plain and learned)


@given(st.lists(items(), max_size=4), st.booleans())
def test_columns_are_those_of_the_items(found: list[Item], frozen: bool) -> None:
    for item in found if frozen else ():  # a copy is kept where an array cannot be written
        item.positions.flags.writeable = item.values.flags.writeable = False
    columns = columns_of(found)
    for i, item in enumerate(found):
        assert columns.keys[i] == (item.name, item.shape, item.dtype)
        assert ENCODINGS[columns.encodings[i]] is item.encoding
        assert columns.nums[i] == item.num_entries
        if item.num_entries:
            assert (columns.firsts[i], columns.lasts[i]) == (item.positions[0], item.positions[-1])
            assert int(columns.positions[i]) == item.positions.ctypes.data
            assert int(columns.values[i]) == item.values.ctypes.data


def test_arrays_with_gaps_are_copied_and_kept() -> None:
    """Compiled loops read them by address."""
    wide = np.arange(8, dtype=np.int64)
    item = Item("t", (8,), "bfloat16", Encoding.XOR, wide[::2], np.ones(4, np.uint16))
    columns = columns_of([item])
    (copy,) = columns.kept
    assert columns.positions[0] == copy.ctypes.data
    assert copy.tolist() == [0, 2, 4, 6]
