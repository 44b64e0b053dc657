"""Payloads: items to bytes and back (paper Appendix D; docs/format.md is the specification)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcr import observe
from dcr.codec.choice import require_known
from dcr.codec.head import HEAD_BYTES, Head, PayloadId, check_identity, read_head, write_payload
from dcr.codec.item import Item, check_item
from dcr.codec.limits import Limits
from dcr.codec.locations import GAP_DTYPES, RUN, decode_gaps, decode_run, encode_locations
from dcr.codec.sections import Kind, read_sections, write_sections
from dcr.codec.table import Row, max_table_bytes, read_table, write_table
from dcr.config import CodecConfig
from dcr.errors import ConfigError, PayloadError
from dcr.model import AttemptId, RunId, bits_dtype

_NO_ID = "0" * 32


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload whose every byte was checked. ``digest`` names it by content (hexadecimal)."""

    identity: PayloadId
    digest: str
    items: tuple[Item, ...]

    @property
    def run(self) -> RunId:
        """Run that it belongs to."""
        return self.identity.run

    @property
    def attempt(self) -> AttemptId:
        """Attempt under which it was sent."""
        return self.identity.attempt

    @property
    def owner(self) -> int:
        """Trainer rank that sent it."""
        return self.identity.owner

    @property
    def sequence(self) -> int:
        """Its number among the owner's payloads of the attempt."""
        return self.identity.sequence

    @property
    def parent(self) -> int:
        """Version that the items act upon; -1 for the anchor."""
        return self.identity.parent

    @property
    def catalogue(self) -> str:
        """Digest of the run's catalogue."""
        return self.identity.catalogue


def encode_payload(  # noqa: PLR0913 -- the stable surface: identifiers are keywords of the call
    items: Sequence[Item],
    *,
    attempt: AttemptId,
    owner: int,
    sequence: int,
    run: RunId = _NO_ID,
    parent: int | None = None,
    catalogue: str = _NO_ID,
    codec: CodecConfig | None = None,
) -> bytes:
    """Return one payload that holds ``items`` in their order; equal arguments give equal bytes.

    ``parent`` is attempt.version - 1 if not given, ``codec`` the defaults.

    Raises:
        ConfigError: an unknown codec, or arguments that ``decode_payload`` would refuse.
    """
    codec = codec or CodecConfig()
    _check_codec(codec)
    parent = attempt.version - 1 if parent is None else parent
    identity = PayloadId(run, attempt, owner, sequence, parent, catalogue)
    check_identity(identity)
    _check_items(items, Limits())
    return _encode(items, identity, codec.zstd_level)


def _check_codec(codec: CodecConfig) -> None:
    require_known(codec.name)
    if not 1 <= codec.zstd_level <= 22:
        raise ConfigError(f"codec.zstd_level is {codec.zstd_level}; give 1 (fast) to 22")


def _check_items(items: Sequence[Item], limits: Limits) -> None:
    for item in items:
        check_item(item, limits)
    num_entries = sum(item.num_entries for item in items)
    if len(items) > limits.max_items or num_entries > limits.max_entries:
        raise _too_large(f"{len(items)} items with {num_entries} entries")
    try:
        _check_claims(items)
    except PayloadError as err:
        raise ConfigError(str(err)) from err


def _too_large(what: str) -> ConfigError:
    return ConfigError(f"{what} do not fit one payload; send the items in several")


def _encode(items: Sequence[Item], identity: PayloadId, level: int) -> bytes:
    limits = Limits()
    rows, sections = _build(items)
    for kind, raw in sections:
        if len(raw) > limits.max_section_bytes:
            raise _too_large(f"{len(raw)} bytes of {kind.name}")
    with observe.span("owner.compress", owner=identity.owner, sequence=identity.sequence):
        body = write_sections(sections, level)
    if HEAD_BYTES + len(body) > limits.max_payload_bytes:
        raise _too_large(f"{len(body)} bytes")
    raw_bytes = sum(len(raw) for _, raw in sections)
    num_entries = sum(row.entries for row in rows)
    return write_payload(Head(identity, len(sections), len(rows), num_entries, raw_bytes, len(body)), body)


def _build(items: Sequence[Item]) -> tuple[list[Row], list[tuple[Kind, bytes]]]:
    rows, locations, values = [], [], []
    values_at = locations_at = 0
    for item in items:
        location_type, start, coded = encode_locations(item.locations)
        row = Row(
            item.name, tuple(item.shape), item.dtype, item.encoding, item.num_entries, values_at,
            location_type, start if location_type == RUN else locations_at, item.target_digest,
        )  # fmt: skip
        rows.append(row)
        locations.append(coded)
        values.append(item.values.tobytes())
        values_at += row.values_bytes
        locations_at += row.locations_bytes
    parts = (write_table(rows), b"".join(locations), b"".join(values))
    return rows, list(zip(Kind, parts, strict=True))


def decode_payload(data: bytes | memoryview, *, limits: Limits | None = None) -> Payload:
    """Parse untrusted bytes; arrays of the items are new, aligned and writable.

    Raises:
        PayloadError: for every input that is not a whole payload of format 1 within ``limits``;
            nothing else leaves this function.
    """
    try:
        view = memoryview(data)
        return _decode(
            view.cast("B") if view.c_contiguous else memoryview(view.tobytes()), limits or Limits()
        )
    except MemoryError as err:
        raise PayloadError("the payload does not fit in memory; lower the limits") from err


def _decode(data: memoryview, limits: Limits) -> Payload:
    head, rows, sections = read_rows(data, limits)
    items = _read_items(rows, sections[Kind.LOCATIONS], sections[Kind.VALUES])
    return Payload(head.identity, head.digest, items)


def read_rows(data: memoryview, limits: Limits) -> tuple[Head, list[Row], dict[Kind, bytes]]:
    """Head, item table and decompressed sections of ``data``; locations and claims are not checked yet.

    Raises:
        PayloadError: as ``decode_payload``.
    """
    head = read_head(data, limits=limits)
    largest = {
        Kind.ITEM_TABLE: max_table_bytes(head.num_items, limits),
        Kind.LOCATIONS: 8 * head.num_entries,
        Kind.VALUES: 8 * head.num_entries,
    }
    sections = read_sections(
        data[HEAD_BYTES:],
        num_sections=head.num_sections,
        raw_bytes=head.raw_bytes,
        bounds={kind: min(size, limits.max_section_bytes) for kind, size in largest.items()},
    )
    rows = read_table(
        sections[Kind.ITEM_TABLE], num_items=head.num_items, num_entries=head.num_entries, limits=limits
    )
    return head, rows, sections


def _read_items(rows: Sequence[Row], locations: bytes, values: bytes) -> tuple[Item, ...]:
    used = (sum(row.locations_bytes for row in rows), sum(row.values_bytes for row in rows))
    if used != (len(locations), len(values)):
        raise PayloadError(f"items use {used} bytes of the buffers, which hold {len(locations), len(values)}")
    items = tuple(_read_item(row, locations, values) for row in rows)
    _check_claims(items)
    return items


def _read_item(row: Row, locations: bytes, values: bytes) -> Item:
    bits = np.frombuffer(values, bits_dtype(row.dtype), row.entries, row.values_at).copy()
    if row.location_type == RUN:
        where = decode_run(row.locations_at, row.entries, row.num_elements)
    else:
        gaps = np.frombuffer(locations, GAP_DTYPES[row.location_type], row.entries, row.locations_at)
        where = decode_gaps(gaps, row.num_elements)
    return Item(row.name, row.shape, row.dtype, row.encoding, where, bits, row.target_digest)


def _check_claims(items: Sequence[Item]) -> None:
    """Items that share a name must describe one tensor and never the same element of it.

    Raises:
        PayloadError: they do not.
    """
    by_name: dict[str, list[Item]] = defaultdict(list)
    for item in items:
        by_name[item.name].append(item)
    for name, group in by_name.items():
        if len(group) == 1:
            continue
        if len({(tuple(item.shape), item.dtype) for item in group}) > 1:
            raise PayloadError(f"items of {name!r} disagree about its shape or dtype")
        merged = np.sort(np.concatenate([item.locations for item in group]))
        if bool((merged[1:] == merged[:-1]).any()):
            raise PayloadError(f"two items of {name!r} hold the same element")
