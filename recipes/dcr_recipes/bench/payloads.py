"""Payloads of one tensor through the real encoder, and which of their bytes are for what."""

from dataclasses import dataclass

import numpy as np

from dcr.codec import Item, encode_payload
from dcr.codec.inspect import inspect_payload, total
from dcr.config import CodecConfig
from dcr.model import AttemptId, Encoding
from dcr_recipes.bench.data import Changes

PUBLISHED = CodecConfig(name="published")
PLANES = CodecConfig(name="planes")
_ATTEMPT = AttemptId(number=1, version=1)


@dataclass(frozen=True, slots=True)
class Sizes:
    """Compressed bytes of a payload; ``other_bytes`` are head, tables and metadata."""

    location_bytes: int
    value_bytes: int
    other_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole payload."""
        return self.location_bytes + self.value_bytes + self.other_bytes


def item_of(name: str, num_elements: int, changes: Changes, encoding: Encoding) -> Item:
    """``changes`` of a BF16 tensor under ``encoding``."""
    if encoding is Encoding.XOR:
        values = changes.old ^ changes.new
    elif encoding is Encoding.DELTA16:
        values = changes.new - changes.old
    else:
        values = changes.new
    return Item(name, (num_elements,), "bfloat16", encoding, changes.locations, values)


def encode(items: list[Item], codec: CodecConfig) -> bytes:
    """One payload."""
    return encode_payload(items, attempt=_ATTEMPT, owner=0, sequence=0, codec=codec)


def sizes_of(data: bytes) -> Sizes:
    """Take a payload apart."""
    found = inspect_payload(data)
    locations = round(total([item.locations for item in found.items]).stored_bytes)
    values = round(total([item.values for item in found.items]).stored_bytes)
    return Sizes(locations, values, found.num_bytes - locations - values)


def run_of(
    old: np.ndarray[tuple[int], np.dtype[np.uint16]], new: np.ndarray[tuple[int], np.dtype[np.uint16]]
) -> Changes:
    """Changes at 0 .. E - 1: a payload of them holds values and no location bytes."""
    return Changes(np.arange(old.size, dtype=np.int64), old, new)
