"""Sparse or whole: how the entries of a shard that changed a lot take the fewest bytes (DESIGN R6, B3, B8).

At a few per cent changed, locations and values of what changed are far smaller than the shard. From some
share on the values of all elements, which need no locations, are not larger: differences that are mostly
zero compress as well as indices do. And what was written anew altogether (another checkpoint, another seed)
has differences that are noise, where the bits themselves compress. Bits are estimated by the frequencies
of bytes on a sample, as the planes of the codec are coded.

Shapes: N elements of a shard, E changed ones, S sampled ones.
"""

from math import log2

import numpy as np

from dcr.codec.engines import zigzagged
from dcr.codec.frames import byte_bits
from dcr.model import Bits, Encoding
from dcr.source.change import TaskChange
from dcr.source.detect import Candidate, host_bits
from dcr.transport.values import differences

WHOLE_FROM = 0.05
"""Share of changed elements from which a whole shard is considered; below it, it never pays."""

_MIN_ELEMENTS = 1 << 12
_SAMPLE = 1 << 15
_BETTER = 0.97
"""A whole shard must be estimated to take this share of the bits: estimates are not better than that."""


def pays_whole(change: TaskChange, encoding: Encoding, old: Bits, new: Candidate) -> bool:
    """Whether all elements, ``old`` to ``new`` [N], take fewer bytes than those of ``change`` alone."""
    share = change.num_changed / max(old.size, 1)
    if share < WHOLE_FROM or old.size < _MIN_ELEMENTS:
        return False
    step = _step(old.size)
    seen = old[::step], host_bits(new.reshape(-1)[::step])
    sparse = _location_bits(share) + share * value_bits(encoding, change.old, change.new)
    return value_bits(whole_encoding(encoding, *seen), *seen) < _BETTER * sparse


def whole_encoding(encoding: Encoding, old: Bits, new: Bits) -> Encoding:
    """How a whole shard, ``old`` to ``new`` [N], takes fewer bytes: by ``encoding`` or by absolute values."""
    if encoding is Encoding.OVERWRITE:
        return encoding
    absolute = value_bits(Encoding.OVERWRITE, old, new)
    return encoding if value_bits(encoding, old, new) <= absolute else Encoding.OVERWRITE


def value_bits(encoding: Encoding, old: Bits, new: Bits) -> float:
    """Estimated bits an element of the values that lead from ``old`` to ``new`` [N]; 0 for none."""
    if not new.size:
        return 0.0
    step = _step(new.size)
    values = differences(encoding, old[::step], new[::step])
    if encoding is Encoding.DELTA16:
        values = zigzagged(values)  # as the codec sends them
    columns = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1).T
    counts = (np.bincount(column, minlength=256) for column in columns)
    return sum(byte_bits(count) for count in counts) / len(values)


def _step(num_elements: int) -> int:
    """Distance of sampled elements: odd, or a matrix of 2^n columns would be judged by a few of them."""
    return num_elements // _SAMPLE | 1


def _location_bits(share: float) -> float:
    if share >= 1:
        return 0.0
    return -(share * log2(share) + (1 - share) * log2(1 - share))
