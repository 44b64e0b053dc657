"""Payloads: items to bytes and back (paper Appendix D; docs/format.md is the specification)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dcr import observe
from dcr.codec.choice import PUBLISHED, require_known
from dcr.codec.columns import Columns, columns_of
from dcr.codec.engines import EngineName, engine_of
from dcr.codec.head import HEAD_BYTES, Head, PayloadId, check_identity, read_head, write_payload
from dcr.codec.item import Item, check_item
from dcr.codec.kinds import Kind, kind_name
from dcr.codec.limits import Limits
from dcr.codec.pack import Sections, pack_planes, pack_published
from dcr.codec.sections import check_bounds, read_frame, read_section_table, write_sections
from dcr.codec.table import Row, max_table_bytes, read_table
from dcr.codec.unpack import check_claims, check_exact, read_items, section_bounds
from dcr.config import CodecConfig
from dcr.errors import ConfigError, PayloadError
from dcr.model import AttemptId, RunId

_NO_ID = "0" * 32


@dataclass(frozen=True, slots=True)
class Payload:
    """A payload whose every byte was checked. ``digest`` names it by content (hexadecimal).

    ``columns`` says the same of ``items`` as arrays. ``raw`` are the bytes that it was decoded from, if these
    were immutable, for those who hand it on.
    """

    identity: PayloadId
    digest: str
    items: tuple[Item, ...]
    raw: bytes | None = field(default=None, repr=False, compare=False)
    columns: Columns = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", columns_of(self.items))

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
    engine: EngineName = "auto",
) -> bytes:
    """Return one payload that holds ``items`` in their order; equal arguments give equal bytes.

    ``parent`` is attempt.version - 1 if not given, ``codec`` the defaults. ``engine`` changes the time
    that it takes, but no byte.

    Raises:
        ConfigError: an unknown codec, or arguments that ``decode_payload`` would refuse.
    """
    codec = codec or CodecConfig()
    _check_codec(codec)
    parent = attempt.version - 1 if parent is None else parent
    identity = PayloadId(run, attempt, owner, sequence, parent, catalogue)
    check_identity(identity)
    _check_items(items, Limits())
    return _encode(items, identity, codec, engine)


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
        check_claims(items)
    except PayloadError as err:
        raise ConfigError(str(err)) from err


def _too_large(what: str) -> ConfigError:
    return ConfigError(f"{what} do not fit one payload; send the items in several")


def _encode(items: Sequence[Item], identity: PayloadId, codec: CodecConfig, engine: EngineName) -> bytes:
    limits = Limits()
    rows, sections = _build(items, codec, engine)
    for kind, raw in sections:
        if len(raw) > limits.max_section_bytes:
            raise _too_large(f"{len(raw)} bytes of {kind_name(kind)}")
    with observe.span("owner.compress", owner=identity.owner, sequence=identity.sequence):
        body = write_sections(sections, codec.zstd_level, smallest=codec.name != PUBLISHED)
    if HEAD_BYTES + len(body) > limits.max_payload_bytes:
        raise _too_large(f"{len(body)} bytes")
    raw_bytes = sum(len(raw) for _, raw in sections)
    num_entries = sum(row.entries for row in rows)
    return write_payload(Head(identity, len(sections), len(rows), num_entries, raw_bytes, len(body)), body)


def _build(items: Sequence[Item], codec: CodecConfig, engine: EngineName) -> tuple[list[Row], Sections]:
    if codec.name == PUBLISHED:
        return pack_published(items)
    num_entries = sum(item.num_entries for item in items)
    return pack_planes(items, engine_of(engine, num_entries), codec.zstd_level)


def decode_payload(
    data: bytes | memoryview, *, limits: Limits | None = None, engine: EngineName = "auto"
) -> Payload:
    """Parse untrusted bytes; arrays of the items are new, aligned and writable.

    Raises:
        PayloadError: for every input that is not a whole payload of format 1 within ``limits``;
            nothing else leaves this function.
    """
    try:
        view = memoryview(data)
        flat = view.cast("B") if view.c_contiguous else memoryview(view.tobytes())
        head, rows, sections = read_rows(flat, limits or Limits())
        items = read_items(rows, sections, engine_of(engine, head.num_entries))
        return Payload(head.identity, head.digest, items, data if isinstance(data, bytes) else None)
    except MemoryError as err:
        raise PayloadError("the payload does not fit in memory; lower the limits") from err


def read_rows(data: memoryview, limits: Limits) -> tuple[Head, list[Row], dict[int, bytes]]:
    """Head, item table and decompressed sections of ``data``; locations and claims are not checked yet.

    Raises:
        PayloadError: as ``decode_payload``.
    """
    head = read_head(data, limits=limits)
    body = data[HEAD_BYTES:]
    table = read_section_table(body, head.num_sections, head.raw_bytes)
    # no item has more than 8 bytes an entry in a section, or 16 more; how many it has says the item table
    most = min(8 * (head.num_entries + 2 * head.num_items), limits.max_section_bytes)
    claims = {row.kind: most for row in table} | {Kind.ITEM_TABLE: _table_bound(head, limits)}
    check_bounds(table, claims)
    raw_table = read_frame(body, table, Kind.ITEM_TABLE)
    rows = read_table(raw_table, num_items=head.num_items, num_entries=head.num_entries, limits=limits)
    bounds = section_bounds(rows)
    check_bounds(table, {row.kind: bounds[row.kind] for row in table if row.kind != Kind.ITEM_TABLE})
    check_exact(bounds, {row.kind: row.raw_bytes for row in table})
    return (
        head,
        rows,
        {row.kind: read_frame(body, table, row.kind) for row in table if row.kind != Kind.ITEM_TABLE},
    )


def _table_bound(head: Head, limits: Limits) -> int:
    return min(max_table_bytes(head.num_items, limits), limits.max_section_bytes)
