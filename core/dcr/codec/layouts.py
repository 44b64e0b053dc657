"""How values are laid out: words, planes of bytes, or small differences two to a byte.

Most differences of an optimizer step are 1 or -1. Huffman codes are whole bits, so a plane of such bytes
takes up to a fifth more than its entropy; two values to a byte halve that. Which of the two is smaller is
tried on a sample of all items together: they share their sections, hence their codes. Only an item that
is one long run is tried by itself, because the elements of a whole tensor may repeat.
Shapes: E entries, S sampled ones.
"""

from collections.abc import Sequence
from math import ceil

import numpy as np

from dcr.codec.engines import Bytes, Engine
from dcr.codec.frames import sample, smallest_size
from dcr.codec.item import Item
from dcr.codec.kinds import RUN, STRIDED, Layout
from dcr.model import Bits, Encoding

WHOLE_BYTES = 1 << 12
"""Values of one run from this size on are tried by themselves."""
_WHOLE_SAMPLE = (1 << 15, 1 << 20)
"""Fewest and most bytes of a long run that are tried."""
_SAMPLED = 1 << 16
_WORTH = 0.99
"""Words or pairs must take this share of what planes take."""


def choose_layouts(items: Sequence[Item], types: Sequence[int], engine: Engine, level: int) -> list[Layout]:
    """The layout of each item with the fewest bytes; ``types`` are their location types."""
    layouts = []
    shared: Layout | None = None
    for item, kind in zip(items, types, strict=True):
        if kind in (RUN, STRIDED) and item.values.nbytes >= WHOLE_BYTES:
            layouts.append(_alone(item, engine, level))
        elif item.encoding is Encoding.DELTA16 and item.num_entries:
            shared = shared or _shared(items, engine, level)
            layouts.append(shared)
        else:
            layouts.append(Layout.PLANES)
    return layouts


def _shared(items: Sequence[Item], engine: Engine, level: int) -> Layout:
    """Tried on about ``_SAMPLED`` differences of all items, from the middle of each and in proportion."""
    arrays = [item.values for item in items if item.encoding is Encoding.DELTA16]
    share = min(1.0, _SAMPLED / max(1, sum(map(len, arrays))))
    parts = []
    for values in arrays:
        size = ceil(share * len(values))
        start = (len(values) - size) // 2
        parts.append(values[start : start + size])
    return _smallest(np.concatenate(parts), engine, level, words=False, pairs=True)


def _alone(item: Item, engine: Engine, level: int) -> Layout:
    raw = np.ascontiguousarray(item.values).view(np.uint8).data
    words = np.frombuffer(sample(raw, *_WHOLE_SAMPLE), item.values.dtype)
    return _smallest(words, engine, level, words=True, pairs=item.encoding is Encoding.DELTA16)


def _smallest(values: Bits, engine: Engine, level: int, *, words: bool, pairs: bool) -> Layout:
    """The layout in which ``values`` [S] are smallest; ``pairs`` says that they are differences."""
    if not len(values):
        return Layout.PLANES
    planes = np.empty((values.dtype.itemsize, len(values)), np.uint8)
    engine.split(values, planes, 0, pairs)
    parts: dict[Layout, list[Bytes]] = {Layout.PLANES: list(planes)}
    if words:
        parts[Layout.WORDS] = [values.view(np.uint8)]
    if pairs:
        halves, excess = engine.pair(values)
        parts[Layout.PAIRS] = [halves, (excess & 255).astype(np.uint8), (excess >> 8).astype(np.uint8)]
    sizes = {
        layout: sum(smallest_size(column.data, level) for column in columns)
        for layout, columns in parts.items()
    }
    best = min(sizes, key=sizes.__getitem__)
    return best if sizes[best] < _WORTH * sizes[Layout.PLANES] else Layout.PLANES
