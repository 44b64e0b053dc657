"""A second parser, written from docs/format.md alone, agrees with ``dcr.codec``."""

import hashlib
import struct
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from tests.property.location_items import every_kind
from tests.property.payload_items import identities, payload_items

from dcr.codec import CODECS, Item, decode_payload, encode_payload
from dcr.config import CodecConfig
from dcr.model import AttemptId

DATA = Path(__file__).parent.parent / "data"
GOLDEN = ("payload_v1.bin", "payload_v1_planes.bin")
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
        assert self.at <= len(self.data)
        return self.data[self.at - count : self.at]

    def bits(self, count: int) -> int:
        """The next ``count`` bits as a number; the rest of their last byte is 0."""
        number = int.from_bytes(self.bytes((count + 7) // 8), "little")
        assert number < 1 << count
        return number

    def unary(self, count: int) -> list[int]:
        """How many bits 0 are before each of the next ``count`` bits 1; the rest of the last byte is 0."""
        numbers: list[int] = []
        zeros, bit = 0, 8 * self.at
        while len(numbers) < count:
            if self.data[bit // 8] >> bit % 8 & 1:
                numbers.append(zeros)
                zeros = -1
            zeros += 1
            bit += 1
        self.at = (bit + 7) // 8
        assert not self.data[self.at - 1] >> ((bit - 1) % 8 + 1)
        return numbers


Sections = dict[int, Reader]


def parse(data: bytes) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
    """Identifiers and items as plain values: name, shape, dtype, encoding, locations, values, digest."""
    num_sections = struct.unpack_from("<I", data, 12)[0]
    assert data[:16] == bytes.fromhex("894443520d0a1a0a") + struct.pack("<HHI", 1, 0, num_sections)
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
    items = parse_items(parse_sections(body, num_sections, raw_bytes))
    assert (len(items), sum(len(item[4]) for item in items)) == (num_items, num_entries)
    return names, items


def parse_sections(body: bytes, num_sections: int, raw_bytes: int) -> Sections:
    rows = [struct.unpack_from("<IIQQ", body, 24 * index) for index in range(num_sections)]
    kinds = [row[0] for row in rows]
    assert kinds[:3] == [1, 2, 3]
    assert kinds == sorted(set(kinds))
    reader = Reader(body)
    reader.at = 24 * num_sections
    sections = {}
    for kind, reserved, size, frame_bytes in rows:
        assert not reserved
        assert size or kind <= 3
        frame = reader.bytes(frame_bytes)
        sections[kind] = Reader(zstandard.ZstdDecompressor().decompress(frame) if frame else b"")
        assert len(sections[kind].data) == size
    assert reader.at == len(body)
    assert sum(len(section.data) for section in sections.values()) == raw_bytes
    return sections


def parse_items(sections: Sections) -> list[tuple[Any, ...]]:
    table = sections[1]
    n, num_dims, name_bytes = table.ints(8, 3)
    columns = [table.ints(width, n) for width in (8, 8, 8, 8, 8, 4, 1, 1, 1, 1, 1)]
    shapes = Reader(struct.pack(f"<{num_dims}Q", *table.ints(8, num_dims)))
    names = Reader(table.bytes(name_bytes))
    items = []
    for row in zip(*columns, strict=True):
        entries, values_at, locations_at, total, count, length, dims, dtype, encoding, kind, flags = row
        name, shape = names.bytes(length).decode(), tuple(shapes.ints(8, dims))
        layout = flags >> 1
        assert values_at == (0 if layout else sections[3].at)
        assert kind not in CODES or locations_at == sections[2].at
        where = parse_locations(sections, kind, locations_at, entries)
        assert all(0 <= at < prod(shape) for at in where)
        bits = parse_values(sections, layout, (encoding, WIDTHS[dtype]), entries)
        digest = (total, count) if flags & 1 else None
        items.append((name, shape, DTYPES[dtype], ENCODINGS[encoding], where, bits, digest))
    assert all(section.at == len(section.data) for section in sections.values())
    return items


def parse_locations(sections: Sections, kind: int, start: int, entries: int) -> list[int]:
    if kind == 0:
        return list(range(start, start + entries))
    if kind in CODES:
        return after(0, sections[2].ints(kind, entries))
    if kind == 16:
        block, period = sections[4].ints(8, 2)
        assert 0 < block < period
        return [start + i * period + j for i in range(entries // block) for j in range(block)]
    if kind == 17:
        return after(start, [escaped(sections[8]) for _ in range(entries)])
    if kind in (18, 20):
        kinds = [16, 17] if kind == 18 else [20, 21, 22, 23]
        return after(start, by_planes(sections, kinds, entries))
    if kind < 128:
        return after(start, rice(sections, kind - 64, entries))
    if kind >= 192:
        width, period = sections[4].ints(8, 2)
        assert 0 < width < period
        return [
            start + number // width * period + number % width
            for number in after(0, rice(sections, kind - 192, entries))
        ]
    (count,) = sections[4].ints(8, 1)
    blocks = after(0, rice(sections, kind - 128, count))
    masks = sections[7].ints(8, count)
    assert all(masks)
    return [
        start + 64 * block + bit
        for block, mask in zip(blocks, masks, strict=True)
        for bit in range(64)
        if mask >> bit & 1
    ]


def after(start: int, gaps: list[int]) -> list[int]:
    return [start + passed + index for index, passed in enumerate(accumulate(gaps))]


def escaped(section: Reader) -> int:
    gap = 0
    while (byte := section.bytes(1)[0]) == 255:
        gap += 255
    return gap + byte


def rice(sections: Sections, k: int, count: int) -> list[int]:
    high = sections[5].unary(count)
    low = sections[6].bits(k * count) if k else 0
    return [(part << k) + (low >> k * index & (1 << k) - 1) for index, part in enumerate(high)]


def by_planes(sections: Sections, kinds: list[int], count: int) -> list[int]:
    planes = [sections[kind].bytes(count) if count else b"" for kind in kinds]
    return [int.from_bytes(word, "little") for word in zip(*planes, strict=True)]


def parse_values(sections: Sections, layout: int, coding: tuple[int, int], entries: int) -> list[int]:
    encoding, width = coding
    if layout == 0:
        return sections[3].ints(width, entries)
    if layout == 1:
        values = by_planes(sections, [256 * encoding + 16 * width + byte for byte in range(width)], entries)
        return [unzigzag(value) for value in values] if encoding == 3 else values
    assert coding == (3, 2)
    pairs = sections[769].bytes((entries + 1) // 2)
    halves = [half for byte in pairs for half in (byte & 15, byte >> 4)]
    assert not any(halves[entries:])
    excess = iter(by_planes(sections, [770, 771], halves.count(15)))
    return [unzigzag(half + (next(excess) if half == 15 else 0)) for half in halves[:entries]]


def unzigzag(coded: int) -> int:
    return (-(coded + 1) // 2 if coded % 2 else coded // 2) % 65536


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


@given(payload_items, identities, st.sampled_from(CODECS))
def test_two_parsers_agree(items: list[Item], identity: dict[str, Any], codec: str) -> None:
    agrees(encode_payload(items, **identity, codec=CodecConfig(name=codec)))


@pytest.mark.parametrize("kind", every_kind())
def test_two_parsers_agree_about_every_location_type(kind: str) -> None:
    agrees(encode_payload([every_kind()[kind]], attempt=AttemptId(1, 2), owner=0, sequence=0))


@pytest.mark.parametrize("name", GOLDEN)
def test_two_parsers_agree_about_the_golden_files(name: str) -> None:
    agrees((DATA / name).read_bytes())
