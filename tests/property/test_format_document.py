"""A second parser, written from docs/format.md alone, agrees with ``dcr.codec``."""

import hashlib
import struct
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import zstandard
from hypothesis import given
from tests.property.payload_items import identities, payload_items

from dcr.codec import Item, decode_payload, encode_payload

GOLDEN = Path(__file__).parent.parent / "data" / "payload_v1.bin"
DTYPES = [
    "bool",
    "uint8",
    "int8",
    "float8_e4m3fn",
    "float8_e5m2",
    "int16",
    "uint16",
    "float16",
    "bfloat16",
    "int32",
    "uint32",
    "float32",
    "int64",
    "uint64",
    "float64",
]
WIDTHS = [1] * 5 + [2] * 4 + [4] * 3 + [8] * 3
ENCODINGS = {1: "xor", 2: "overwrite", 3: "delta16"}
CODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


class Reader:
    """Takes integers from the front of some bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def ints(self, width: int, count: int) -> list[int]:
        numbers = struct.unpack_from(f"<{count}{CODES[width]}", self.data, self.at)
        self.at += width * count
        return list(numbers)

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


def parse(data: bytes) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Identifiers and items as plain values: name, shape, dtype, encoding, locations, values, digest."""
    assert data[:16] == bytes.fromhex("894443520d0a1a0a") + struct.pack("<HHI", 1, 0, 3)
    version, number, owner, sequence, parent = struct.unpack_from("<QQIIq", data, 32)
    num_items, num_entries, raw_bytes, body_bytes = struct.unpack_from("<4Q", data, 80)
    body = data[128:]
    digest = hashlib.blake2b(data[:112] + body, digest_size=16).digest()
    assert data[112:128] == digest
    assert len(body) == body_bytes
    names = {
        "attempt": (number, version), "owner": owner, "sequence": sequence, "parent": parent,
        "run": data[16:32].hex(), "catalogue": data[64:80].hex(), "digest": digest.hex(),
    }  # fmt: skip
    table, locations, values = parse_sections(body, raw_bytes)
    items = parse_items(Reader(table), Reader(locations), Reader(values))
    assert (len(items), sum(len(item[4]) for item in items)) == (num_items, num_entries)
    return names, items


def parse_sections(body: bytes, raw_bytes: int) -> list[bytes]:
    rows = [struct.unpack_from("<IIQQ", body, 24 * index) for index in range(3)]
    assert [row[:2] for row in rows] == [(1, 0), (2, 0), (3, 0)]
    reader = Reader(body)
    reader.at = 72
    frames = [reader.bytes(row[3]) for row in rows]
    sections = [zstandard.ZstdDecompressor().decompress(frame) if frame else b"" for frame in frames]
    assert reader.at == len(body)
    assert [len(section) for section in sections] == [row[2] for row in rows]
    assert sum(map(len, sections)) == raw_bytes
    return sections


def parse_items(table: Reader, locations: Reader, values: Reader) -> list[tuple[Any, ...]]:
    n, num_dims, name_bytes = table.ints(8, 3)
    columns = [table.ints(width, n) for width in (8, 8, 8, 8, 8, 4, 1, 1, 1, 1, 1)]
    shapes = Reader(struct.pack(f"<{num_dims}Q", *table.ints(8, num_dims)))
    names = Reader(table.bytes(name_bytes))
    assert table.at == len(table.data)
    items = []
    for row in zip(*columns, strict=True):
        entries, values_at, locations_at, total, count, length, dims, dtype, encoding, kind, flags = row
        name, shape = names.bytes(length).decode(), tuple(shapes.ints(8, dims))
        assert values_at == values.at
        where = list(range(locations_at, locations_at + entries))
        if kind:
            assert locations_at == locations.at
            gaps = locations.ints(kind, entries)
            where = [passed + index for index, passed in enumerate(accumulate(gaps))]
        assert all(0 <= at < prod(shape) for at in where)
        bits = values.ints(WIDTHS[dtype], entries)
        digest = (total, count) if flags else None
        items.append((name, shape, DTYPES[dtype], ENCODINGS[encoding], where, bits, digest))
    assert (locations.at, values.at) == (len(locations.data), len(values.data))
    return items


def plain(item: Item) -> tuple[Any, ...]:
    """The same form for an item of the codec."""
    fields = (item.name, item.shape, item.dtype, str(item.encoding))
    return (*fields, item.locations.tolist(), item.values.tolist(), item.target_digest)


def agrees(data: bytes) -> None:
    payload = decode_payload(data)
    names, items = parse(data)
    attempt = (payload.attempt.number, payload.attempt.version)
    fields = ("owner", "sequence", "parent", "run", "catalogue", "digest")
    assert names == {"attempt": attempt, **{field: getattr(payload, field) for field in fields}}
    assert items == [plain(item) for item in payload.items]


@given(payload_items, identities)
def test_two_parsers_agree(items: list[Item], identity: dict[str, Any]) -> None:
    agrees(encode_payload(items, **identity))


def test_two_parsers_agree_about_the_golden_file() -> None:
    agrees(GOLDEN.read_bytes())
