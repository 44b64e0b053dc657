"""Fixed-size head of a payload: whose it is, what it leads from, how large it says it is (P16).

Everything but the digest itself is covered by the digest, so a flipped owner or sequence byte
cannot make a "new" payload that would be applied twice.
"""

import hashlib
import re
import struct
from dataclasses import dataclass

from dcr.codec.limits import Limits
from dcr.errors import ConfigError, PayloadError
from dcr.model import AttemptId, RunId

MAGIC = b"\x89DCR\r\n\x1a\n"
FORMAT_VERSION = 1
# magic, format, flags, sections, run, version, number, owner, sequence, parent, catalogue, items,
# entries, raw bytes, body bytes; then the digest
_FIELDS = struct.Struct("<8sHHI16sQQIIq16sQQQQ")
_DIGEST_BYTES = 16
HEAD_BYTES = _FIELDS.size + _DIGEST_BYTES
_LARGEST_ID = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class PayloadId:
    """Which payload this is: key of deduplication (run, attempt, owner, sequence) and what it builds on.

    ``run`` and ``catalogue`` are 32 hexadecimal digits; ``parent`` is the version it leads from, -1
    for the anchor.
    """

    run: RunId
    attempt: AttemptId
    owner: int
    sequence: int
    parent: int
    catalogue: str


@dataclass(frozen=True, slots=True)
class Head:
    """Parsed head. Sizes are what the sender declared: raw is after decompression, body as sent."""

    identity: PayloadId
    num_sections: int
    num_items: int
    num_entries: int
    raw_bytes: int
    body_bytes: int
    digest: str = ""


def check_identity(identity: PayloadId) -> None:
    """Refuse identifiers that the head cannot hold.

    Raises:
        ConfigError: names the field.
    """
    for field, text in (("run", identity.run), ("catalogue", identity.catalogue)):
        if not re.fullmatch("[0-9a-f]{32}", text):
            raise ConfigError(f"{field} must be 32 lower-case hexadecimal digits, got {text!r}")
    attempt = identity.attempt
    ranges = (
        ("attempt.version", attempt.version, 0, _LARGEST_ID),
        ("attempt.number", attempt.number, 0, _LARGEST_ID),
        ("owner", identity.owner, 0, (1 << 32) - 1),
        ("sequence", identity.sequence, 0, (1 << 32) - 1),
        ("parent", identity.parent, -1, _LARGEST_ID),
    )
    for field, value, low, high in ranges:
        if not low <= value <= high:
            raise ConfigError(f"{field} is {value}; it must be within {low} .. {high}")


def write_payload(head: Head, body: bytes) -> bytes:
    """Return head and body; ``head.digest`` is ignored and computed, ``head.body_bytes`` is written as is."""
    name = head.identity
    fields = _FIELDS.pack(
        MAGIC, FORMAT_VERSION, 0, head.num_sections, bytes.fromhex(name.run),
        name.attempt.version, name.attempt.number, name.owner, name.sequence, name.parent,
        bytes.fromhex(name.catalogue), head.num_items, head.num_entries, head.raw_bytes, head.body_bytes,
    )  # fmt: skip
    return b"".join((fields, digest_of(fields, body), body))


def digest_of(fields: bytes | memoryview, body: bytes | memoryview) -> bytes:
    """BLAKE2b-128 over the head up to the digest, then everything after it."""
    state = hashlib.blake2b(fields, digest_size=_DIGEST_BYTES)
    state.update(body)
    return state.digest()


def read_head(data: bytes | memoryview, *, limits: Limits | None = None) -> Head:
    """Check structure, declared sizes and digest of ``data``; nothing is decompressed.

    Raises:
        PayloadError: not a payload of this format, larger than ``limits``, or not the bytes sent.
    """
    view = memoryview(data).cast("B")
    if len(view) < HEAD_BYTES:
        raise PayloadError(f"{len(view)} bytes are fewer than the head of a payload ({HEAD_BYTES})")
    fields, body = view[: _FIELDS.size], view[HEAD_BYTES:]
    head = _parse(fields, bytes(view[_FIELDS.size : HEAD_BYTES]).hex())
    if head.body_bytes != len(body):
        raise PayloadError(f"the head declares a body of {head.body_bytes} bytes, {len(body)} follow")
    _check_sizes(head, limits or Limits())
    if digest_of(fields, body).hex() != head.digest:
        raise PayloadError("digest mismatch: head or body were changed on the way")
    return head


def payload_digest(data: bytes | memoryview) -> str:
    """Hexadecimal BLAKE2b-128 that names this payload (PayloadRef.digest), verified against its bytes.

    Raises:
        PayloadError: as ``read_head``.
    """
    return read_head(data).digest


def stated_digest(data: bytes) -> str:
    """As ``payload_digest``, not verified: what this process has just encoded need not be hashed twice."""
    return data[_FIELDS.size : HEAD_BYTES].hex()


def _parse(fields: memoryview, digest: str) -> Head:
    (magic, version, flags, num_sections, run, transition, number, owner, sequence, parent, catalogue,
     num_items, num_entries, raw_bytes, body_bytes) = _FIELDS.unpack(fields)  # fmt: skip
    if magic != MAGIC:
        raise PayloadError(f"not a payload: it starts with {magic!r}")
    if version != FORMAT_VERSION:
        raise PayloadError(f"payload format {version} is unknown; this release reads {FORMAT_VERSION}")
    if flags:
        raise PayloadError(f"reserved flags {flags:#06x} are set in the head")
    if transition > _LARGEST_ID or number > _LARGEST_ID or parent < -1:
        raise PayloadError(
            f"identifiers out of range: version {transition}, number {number}, parent {parent}"
        )
    attempt = AttemptId(number=number, version=transition)
    identity = PayloadId(run.hex(), attempt, owner, sequence, parent, catalogue.hex())
    return Head(identity, num_sections, num_items, num_entries, raw_bytes, body_bytes, digest)


def _check_sizes(head: Head, limits: Limits) -> None:
    bounds = (
        ("bytes", HEAD_BYTES + head.body_bytes, limits.max_payload_bytes),
        ("items", head.num_items, limits.max_items),
        ("entries", head.num_entries, limits.max_entries),
        ("raw bytes", head.raw_bytes, head.num_sections * limits.max_section_bytes),
    )
    for what, claim, bound in bounds:
        if claim > bound:
            raise PayloadError(f"the head declares {claim} {what}; the limit is {bound}")
