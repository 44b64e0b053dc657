"""Write the seeds of ``fuzz_payload.py``: ``python tests/fuzz/make_corpus.py tests/fuzz/corpus``."""

import struct
import sys
from pathlib import Path

import numpy as np

from dcr.codec import Item, encode_payload
from dcr.codec.sections import Kind
from dcr.model import AttemptId, AuditDigest, Encoding, bits_dtype
from dcr.testing.payload_surgery import split


def item(name: str, shape: tuple[int, ...], dtype: str, encoding: Encoding, locations: list[int]) -> Item:
    """Values count up from 1."""
    values = np.arange(1, len(locations) + 1).astype(bits_dtype(dtype))
    digest = AuditDigest(99, len(locations)) if encoding is Encoding.XOR else None
    return Item(name, shape, dtype, encoding, np.array(locations, np.int64), values, digest)


def payloads() -> dict[str, list[Item]]:
    """A few small lists of items that reach every branch of a valid payload."""
    run = item("run", (4, 4), "bfloat16", Encoding.XOR, [3, 4, 5])
    gaps1 = item("gaps1", (600,), "float32", Encoding.OVERWRITE, [0, 2, 257])
    gaps8 = item("gaps8", (1 << 40,), "int64", Encoding.XOR, [0, (1 << 32) + 1])
    mixed = [
        item("w", (1 << 20,), "uint8", Encoding.XOR, [0, 300]),
        item("w", (1 << 20,), "uint8", Encoding.OVERWRITE, [1, 70_000]),
        item("s", (), "bool", Encoding.OVERWRITE, [0]),
        item("e", (0, 2), "float64", Encoding.XOR, []),
    ]
    return {"none": [], "run": [run], "gaps1": [gaps1], "gaps8": [gaps8], "mixed": mixed}


def seeds(items: list[Item]) -> list[bytes]:
    """The three forms that an input can have."""
    data = encode_payload(items, attempt=AttemptId(number=2, version=1), owner=0, sequence=0)
    parts = split(data)
    table, locations = parts.sections[Kind.ITEM_TABLE], parts.sections[Kind.LOCATIONS]
    counts = struct.pack("<HIHH", len(items), parts.head.num_entries, len(table), len(locations))
    return [b"\x00" + data, b"\x01" + data, b"\x02" + counts + b"".join(parts.sections.values())]


if __name__ == "__main__":
    for name, items in payloads().items():
        for form, seed in enumerate(seeds(items)):
            (Path(sys.argv[1]) / f"{name}-{form}").write_bytes(seed)
