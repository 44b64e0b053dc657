"""Take payloads apart and put them together again, wrong where a test wants it.

A changed byte never passes the digest, so tests that mean to reach the parser behind it repair
the digest (``reseal``), or also the sizes and frames (``join``).
"""

from dataclasses import dataclass, replace

from dcr.codec import Payload, encode_payload
from dcr.codec.head import HEAD_BYTES, Head, digest_of, read_head, write_payload
from dcr.codec.sections import read_sections, write_sections
from dcr.config import CodecConfig

_DIGEST = slice(HEAD_BYTES - 16, HEAD_BYTES)
_MAX_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Parts:
    """Head and decompressed sections of one payload."""

    head: Head
    sections: dict[int, bytes]


def split(data: bytes) -> Parts:
    """Take a valid payload apart."""
    head = read_head(data)
    sections = read_sections(
        memoryview(data)[HEAD_BYTES:],
        num_sections=head.num_sections,
        raw_bytes=head.raw_bytes,
        max_bytes=_MAX_BYTES,
    )
    return Parts(head, sections)


def join(parts: Parts) -> bytes:
    """Compress ``parts.sections`` again; their number, byte sizes and the digest are made to match them.

    ``num_items`` and ``num_entries`` stay as ``parts.head`` has them.
    """
    body = write_sections(list(parts.sections.items()), level=1)
    head = replace(parts.head, num_sections=len(parts.sections))
    return join_body(head, body, raw_bytes=sum(map(len, parts.sections.values())))


def join_body(head: Head, body: bytes, *, raw_bytes: int) -> bytes:
    """Put ``head`` before any ``body``; its body size and digest match, the rest need not."""
    return write_payload(replace(head, raw_bytes=raw_bytes, body_bytes=len(body)), body)


def reseal(data: bytes) -> bytes:
    """Return ``data`` (at least a head) with the digest that its other bytes deserve."""
    sealed = bytearray(data)
    fields, body = data[: _DIGEST.start], data[HEAD_BYTES:]
    sealed[_DIGEST] = digest_of(fields, body)
    return bytes(sealed)


def encode_again(payload: Payload, codec: str = "planes") -> bytes:
    """Encode what was decoded; whatever the parser accepts must pass."""
    name = payload.identity
    return encode_payload(
        payload.items,
        attempt=name.attempt,
        owner=name.owner,
        sequence=name.sequence,
        run=name.run,
        parent=name.parent,
        catalogue=name.catalogue,
        codec=CodecConfig(name=codec),
    )
