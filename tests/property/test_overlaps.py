"""Overlaps found by numbers and in chunks, against counting every byte."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from dcr.errors import ConfigError
from dcr.receiver import overlap
from dcr.receiver.landing import landings_of
from dcr.receiver.overlap import Region, find_overlaps
from dcr.receiver.trace import Kind, Source, Write

_SIZE = 96


@st.composite
def writes(draw: st.DrawFn) -> Write:
    shape = draw(st.sampled_from([(), (2,), (5,), (2, 3), (4, 2), (2, 2, 2)]))
    strides = tuple(draw(st.sampled_from([1, 2, 3, 6, 8, 12])) for _ in shape)
    sources = tuple(draw(st.sampled_from([0, 1, 2, 3, 6])) for _ in shape)
    dtype = draw(st.sampled_from([torch.bfloat16, torch.bfloat16, torch.float32]))
    offset = draw(st.integers(0, 24))
    source = Source(draw(st.integers(0, 6)), sources, torch.bfloat16, None, direct=True)
    return Write(Kind.COPY, draw(st.integers(0, 1)), offset, shape, strides, dtype, source)


def _bytes_of(write: Write) -> list[tuple[int, object]]:
    """(byte of the storage, what is stored there), storage included in both."""
    places = [(write.offset, write.source.offset if write.source else 0)]
    for n, stride, source in zip(write.shape, write.strides, write.source.strides, strict=True):  # type: ignore[union-attr]
        places = [(at + i * stride, src + i * source) for at, src in places for i in range(n)]
    width = write.dtype.itemsize
    return [
        (at * width + lane + write.storage * 10**6, (src, write.dtype, lane))
        for at, src in places
        for lane in range(width)
    ]


def _regions(found: list[tuple[str, Write]]) -> list[Region]:
    regions = []
    for order, (name, write) in enumerate(found):
        try:
            boxes = tuple(landing.box for landing in landings_of(write, torch.bfloat16))
        except ConfigError:
            continue
        regions.append(Region(name, ord(name), order, write, write.extent, boxes))
    return regions


@given(st.lists(st.tuples(st.sampled_from("abc"), writes()), max_size=6), st.integers(1, 64))
def test_overlaps_are_those_of_a_count_of_bytes(found: list[tuple[str, Write]], chunk: int) -> None:
    regions = _regions(found)
    shared: set[str] = set()
    clashes: set[str] = set()
    conflicts: set[str] = set()
    for i, one in enumerate(regions):
        for two in regions[i + 1 :]:
            here, there = dict(_bytes_of(one.write)), dict(_bytes_of(two.write))
            common = here.keys() & there.keys()
            equal = one.root == two.root and all(here[at] == there[at] for at in common)
            if common and equal:
                shared |= {one.name, two.name}
            elif common and one.name == two.name:
                clashes.add(one.name)
            elif common:
                conflicts |= {one.name, two.name}
    before, overlap._CHUNK = overlap._CHUNK, chunk
    try:
        got = find_overlaps(regions, {})
    finally:
        overlap._CHUNK = before
    assert (got.shared, got.clashes, set(got.conflicts)) == (shared, clashes, conflicts)
