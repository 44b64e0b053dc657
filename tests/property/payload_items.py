"""Strategies and helpers for payload tests. Shapes: E entries."""

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from dcr.codec import Item
from dcr.codec.item import takes_encoding
from dcr.model import AttemptId, AuditDigest, Encoding, bits_dtype, known_dtypes

MODULUS = 2**61 - 1
shapes = st.one_of(
    st.just(()),
    st.lists(st.integers(0, 6), min_size=1, max_size=4).map(tuple),
    st.sampled_from([(70_000,), (300, 300), (1 << 20, 1 << 13), (3, 1 << 40)]),
)


@st.composite
def items(draw: st.DrawFn, names: st.SearchStrategy[str] | None = None) -> Item:
    """Any valid item; about half of the non-empty ones are one contiguous run."""
    name = draw(names or st.text(st.characters(codec="utf-8"), min_size=1, max_size=12))
    shape = draw(shapes)
    num_elements = int(np.prod(shape, dtype=object))
    locations = draw(_locations(num_elements))
    dtype = draw(st.sampled_from(known_dtypes()))
    allowed = [way for way in Encoding if takes_encoding(dtype, way)]
    digests = st.builds(AuditDigest, st.integers(0, MODULUS - 1), st.integers(0, num_elements))
    return Item(
        name,
        shape,
        dtype,
        draw(st.sampled_from(allowed)),
        locations,
        _values(draw(st.integers(0, 2**32)), dtype, len(locations)),
        draw(st.none() | digests),
    )


@st.composite
def _locations(draw: st.DrawFn, num_elements: int) -> NDArray[np.int64]:
    if not num_elements:
        return np.empty(0, np.int64)
    if draw(st.booleans()):
        start = draw(st.integers(0, num_elements - 1))
        return np.arange(start, start + draw(st.integers(0, min(40, num_elements - start))), dtype=np.int64)
    near = st.integers(0, min(num_elements, 600) - 1)
    chosen = draw(st.sets(near | st.integers(0, num_elements - 1), max_size=40))
    return np.array(sorted(chosen), dtype=np.int64)


def _values(seed: int, dtype: str, count: int) -> NDArray[np.unsignedinteger[Any]]:
    bits = bits_dtype(dtype)
    return np.frombuffer(np.random.default_rng(seed).bytes(bits.itemsize * count), bits).copy()


payload_items = st.lists(items(), max_size=6, unique_by=lambda item: item.name)
u63 = st.integers(0, 2**63 - 1)
u32 = st.integers(0, 2**32 - 1)
hex_ids = st.binary(min_size=16, max_size=16).map(bytes.hex)
identities = st.fixed_dictionaries(
    {
        "attempt": st.builds(AttemptId, u63, u63),
        "owner": u32,
        "sequence": u32,
        "run": hex_ids,
        "parent": st.integers(-1, 2**63 - 1),
        "catalogue": hex_ids,
    }
)


def simple_item(name: str = "w", *, count: int = 3, stride: int = 7, dtype: str = "bfloat16") -> Item:
    """``count`` entries ``stride`` apart in a tensor of 1000 elements (stride 1: a run)."""
    locations = np.arange(count, dtype=np.int64) * stride
    values = np.arange(1, count + 1).astype(bits_dtype(dtype))
    return Item(name, (10, 100), dtype, Encoding.XOR, locations, values, AuditDigest(12345, count))
