"""Coverage-guided fuzzing of the payload parser.

    mkdir -p .fuzz && python tests/fuzz/fuzz_payload.py .fuzz tests/fuzz/corpus -max_total_time=60

New inputs go to the first folder; the second holds the seeds (``make_corpus.py`` writes them).
A mutated payload never passes the digest, so the first byte of an input says how much is repaired:

    0  nothing
    1  body size and digest of the payload that follows
    2  everything but the content: items u16, entries u32, table bytes u16, location bytes u16
       (little-endian), then the raw item table, locations and values, which are compressed here
"""

import struct
import sys
from dataclasses import replace

import atheris

with atheris.instrument_imports(include=["dcr.codec"]):
    from dcr.codec import Limits, decode_payload, encode_payload, read_head
    from dcr.codec.head import HEAD_BYTES
    from dcr.codec.sections import Kind
    from dcr.errors import PayloadError
    from dcr.model import AttemptId
    from dcr.testing.payload_surgery import Parts, encode_again, join, reseal

_COUNTS = struct.Struct("<HIHH")
_BODY_BYTES_AT = HEAD_BYTES - 24
_LIMITS = Limits(max_section_bytes=1 << 24, max_entries=1 << 24)
_HEAD = read_head(encode_payload([], attempt=AttemptId(number=2, version=1), owner=0, sequence=0))


def repaired(data: bytes) -> bytes:
    """The payload that an input stands for."""
    kind, rest = data[:1], data[1:]
    if kind == b"\x01" and len(rest) >= HEAD_BYTES:
        size = struct.pack("<Q", len(rest) - HEAD_BYTES)
        return reseal(rest[:_BODY_BYTES_AT] + size + rest[_BODY_BYTES_AT + 8 :])
    if kind == b"\x02" and len(rest) >= _COUNTS.size:
        return _joined(rest)
    return rest


def _joined(rest: bytes) -> bytes:
    items, entries, table_bytes, location_bytes = _COUNTS.unpack_from(rest)
    table_end = _COUNTS.size + table_bytes
    sections = {
        Kind.ITEM_TABLE: rest[_COUNTS.size : table_end],
        Kind.LOCATIONS: rest[table_end : table_end + location_bytes],
        Kind.VALUES: rest[table_end + location_bytes :],
    }
    return join(Parts(replace(_HEAD, num_items=items, num_entries=entries), sections))


def one_input(data: bytes) -> None:
    """Only PayloadError may leave the parser; what it accepts must encode and decode to the same."""
    try:
        payload = decode_payload(repaired(data), limits=_LIMITS)
    except PayloadError:
        return
    assert decode_payload(encode_again(payload)).items == payload.items


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
