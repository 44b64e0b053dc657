"""Write the seeds of ``fuzz_payload.py``: ``python tests/fuzz/make_corpus.py tests/fuzz/corpus``."""

import struct
import sys
from pathlib import Path

import numpy as np

from dcr.codec import Item, encode_payload
from dcr.codec.kinds import Kind
from dcr.config import CodecConfig
from dcr.model import AttemptId, AuditDigest, Encoding, bits_dtype
from dcr.testing.payload_surgery import split

OVER = Encoding.OVERWRITE


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


def planes() -> dict[str, list[Item]]:
    """Items for which the coding ``planes`` takes each location type and layout."""
    draw = np.random.default_rng(6)
    rice = np.cumsum(draw.geometric(0.01, 25)).tolist()
    blocks = np.flatnonzero(draw.random(1 << 16) < np.repeat(draw.random(1 << 10) < 0.01, 64) * 0.5).tolist()
    stride = [3 + 9 * row + column for row in range(5) for column in range(4)]
    far = [(1 << 40) + at for at in rice]
    rows, columns = np.divmod(np.cumsum(draw.geometric(0.05, 1100)), 8)
    strip = (32 * rows + 8 + columns).tolist()
    return {
        "rice": [item("r", (1 << 40, 2), "bfloat16", Encoding.DELTA16, [*rice, *far])],
        "blocks": [item("b", (1 << 16,), "bfloat16", Encoding.DELTA16, blocks)],
        "stride": [item("s", (60,), "bfloat16", Encoding.DELTA16, stride)],
        "strips": [item("t", (1 << 20, 32), "bfloat16", Encoding.DELTA16, strip)],
        "wide": [item("i", (999,), "int64", Encoding.XOR, [1, 9]), item("f", (9,), "float32", OVER, [2, 7])],
        "all": [
            item("r", (1 << 20,), "bfloat16", Encoding.DELTA16, rice),
            item("b", (1 << 16,), "uint8", Encoding.XOR, blocks),
            item("s", (60,), "float16", OVER, stride),
        ],
    }


def bytes_as_gaps(kind: int) -> bytes:
    """Gaps with escapes or in planes are taken from 4096 entries on; here they are written by hand."""
    few = item("g", (1 << 40,), "uint8", Encoding.XOR, [0, 2, 4])
    parts = split(encode([few], "published"))
    table = bytearray(parts.sections[Kind.ITEM_TABLE])
    table[24 + 5 * 8 + 4 + 3] = kind
    gaps = {
        17: {8: b"\xff\x07\x00\xff\xff\x01"},
        18: {16: b"abc", 17: b"\0\1\2"},
        20: dict.fromkeys(range(20, 24), b"\0\1\2"),
    }
    return any_sections(1, 3, {1: bytes(table), 2: b"", 3: parts.sections[Kind.VALUES], **gaps[kind]})


def encode(items: list[Item], codec: str) -> bytes:
    """One payload."""
    name = CodecConfig(name=codec)
    return encode_payload(items, attempt=AttemptId(number=2, version=1), owner=0, sequence=0, codec=name)


def any_sections(num_items: int, num_entries: int, sections: dict[int, bytes]) -> bytes:
    """The form that holds any sections."""
    rows = b"".join(struct.pack("<HH", kind, len(raw)) for kind, raw in sections.items())
    return (
        b"\x03"
        + struct.pack("<HIB", num_items, num_entries, len(sections))
        + rows
        + b"".join(sections.values())
    )


def planes_seeds(items: list[Item]) -> list[bytes]:
    """As it is sent, and by sections."""
    data = encode(items, "planes")
    parts = split(data)
    return [b"\x01" + data, any_sections(len(items), parts.head.num_entries, parts.sections)]


def seeds(items: list[Item]) -> list[bytes]:
    """The three forms that an input in the published coding can have."""
    data = encode(items, "published")
    parts = split(data)
    table, locations = parts.sections[Kind.ITEM_TABLE], parts.sections[Kind.LOCATIONS]
    counts = struct.pack("<HIHH", len(items), parts.head.num_entries, len(table), len(locations))
    return [b"\x00" + data, b"\x01" + data, b"\x02" + counts + b"".join(parts.sections.values())]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name, items in payloads().items():
        for form, seed in enumerate(seeds(items)):
            (folder / f"{name}-{form}").write_bytes(seed)
    for name, items in planes().items():
        for form, seed in zip((1, 3), planes_seeds(items), strict=True):
            (folder / f"planes-{name}-{form}").write_bytes(seed)
    for kind in (17, 18, 20):
        (folder / f"planes-gaps{kind}-3").write_bytes(bytes_as_gaps(kind))
