"""Coverage-guided fuzzing of the payload parser.

    mkdir -p .fuzz && python tests/fuzz/fuzz_payload.py .fuzz tests/fuzz/corpus -max_total_time=60

New inputs go to the first folder; the second holds the seeds (``make_corpus.py`` writes them).
A mutated payload never passes the digest, so the first byte of an input says how much is repaired:

    0  nothing
    1  body size and digest of the payload that follows
    2  everything but the content: items u16, entries u32, table bytes u16, location bytes u16
       (little-endian), then the raw item table, locations and values, which are compressed here
    3  the same for any sections: items u16, entries u32, number of sections u8, for each its kind u16
       and its bytes u16, then all raw sections

Both engines read every input; they must agree.
"""

import struct
import sys
from dataclasses import replace

import atheris

# loops that are compiled later must be plain bytecode
with atheris.instrument_imports(include=["dcr.codec"], exclude=["dcr.codec.kernels"]):
    from dcr.codec import CODECS, Limits, Payload, decode_payload, encode_payload, read_head
    from dcr.codec.engines import EngineName
    from dcr.codec.head import HEAD_BYTES
    from dcr.codec.kinds import Kind
    from dcr.errors import PayloadError
    from dcr.model import AttemptId
    from dcr.testing.payload_surgery import Parts, encode_again, join, reseal

_COUNTS = struct.Struct("<HIHH")
_ANY_COUNTS = struct.Struct("<HIB")
_ANY_SECTION = struct.Struct("<HH")
_BODY_BYTES_AT = HEAD_BYTES - 24
_LIMITS = Limits(max_section_bytes=1 << 23, max_entries=1 << 20)
_HEAD = read_head(encode_payload([], attempt=AttemptId(number=2, version=1), owner=0, sequence=0))


def repaired(data: bytes) -> bytes:
    """The payload that an input stands for."""
    kind, rest = data[:1], data[1:]
    if kind == b"\x01" and len(rest) >= HEAD_BYTES:
        size = struct.pack("<Q", len(rest) - HEAD_BYTES)
        return reseal(rest[:_BODY_BYTES_AT] + size + rest[_BODY_BYTES_AT + 8 :])
    if kind == b"\x02" and len(rest) >= _COUNTS.size:
        return _joined(rest)
    if kind == b"\x03" and len(rest) >= _ANY_COUNTS.size:
        return _joined_any(rest)
    return rest


def _joined(rest: bytes) -> bytes:
    items, entries, table_bytes, location_bytes = _COUNTS.unpack_from(rest)
    table_end = _COUNTS.size + table_bytes
    sections: dict[int, bytes] = {
        Kind.ITEM_TABLE: rest[_COUNTS.size : table_end],
        Kind.LOCATIONS: rest[table_end : table_end + location_bytes],
        Kind.VALUES: rest[table_end + location_bytes :],
    }
    return join(Parts(replace(_HEAD, num_items=items, num_entries=entries), sections))


def _joined_any(rest: bytes) -> bytes:
    items, entries, count = _ANY_COUNTS.unpack_from(rest)
    at = _ANY_COUNTS.size
    end = at + count * _ANY_SECTION.size
    sections: dict[int, bytes] = {}
    start = end
    for kind, size in _ANY_SECTION.iter_unpack(rest[at : at + (len(rest[at:end]) // 4) * 4]):
        sections[kind] = rest[start : start + size]
        start += size
    return join(Parts(replace(_HEAD, num_items=items, num_entries=entries), sections))


def read(data: bytes, engine: EngineName) -> Payload | None:
    """Only PayloadError may leave the parser."""
    try:
        return decode_payload(data, limits=_LIMITS, engine=engine)
    except PayloadError:
        return None


def one_input(data: bytes) -> None:
    """Engines agree, and what they accept encodes and decodes to the same in both codings."""
    whole = repaired(data)
    payload = read(whole, "numpy")
    assert read(whole, "compiled") == payload
    if payload is not None:
        for codec in CODECS:
            assert decode_payload(encode_again(payload, codec)).items == payload.items


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
