"""Body of a payload: a table of sections, then one zstd frame for each that is not empty, in order.

Row of the table: kind u32, reserved u32 (0), raw size u64, compressed size u64, little-endian.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dcr.codec.frames import Raw, compress, compress_smallest, decompress
from dcr.codec.kinds import MANDATORY, SECTION_KINDS, Kind, kind_name
from dcr.errors import PayloadError

__all__ = [
    "Kind",
    "SectionRow",
    "check_bounds",
    "read_frame",
    "read_section_table",
    "read_sections",
    "write_sections",
]

_ROW = struct.Struct("<IIQQ")
_THOROUGH_BYTES, _THOROUGH_LEVEL = 1 << 18, 12


@dataclass(frozen=True, slots=True)
class SectionRow:
    """One row of the table: size after decompression, and size of its frame."""

    kind: int
    raw_bytes: int
    frame_bytes: int


def write_sections(sections: Sequence[tuple[int, Raw]], level: int, *, smallest: bool = False) -> bytes:
    """Compress ``sections`` and return the body; equal input gives equal bytes.

    At zstd ``level``, or with ``smallest`` in the way that makes each frame smallest.
    """
    frames = [_frame(kind, raw, level) if smallest else compress(raw, level) for kind, raw in sections]
    rows = [
        _ROW.pack(kind, 0, len(raw), len(frame)) for (kind, raw), frame in zip(sections, frames, strict=True)
    ]
    return b"".join(rows + frames)


def _frame(kind: int, raw: Raw, level: int) -> bytes:
    """Item tables are short and full of repetitions: a thorough search costs nothing there."""
    if kind == Kind.ITEM_TABLE and len(raw) < _THOROUGH_BYTES:
        return compress(raw, max(level, _THOROUGH_LEVEL))
    return compress_smallest(raw, level)


def read_section_table(body: memoryview, num_sections: int, raw_bytes: int | None = None) -> list[SectionRow]:
    """Parse the table; its sizes are claims. ``raw_bytes`` is the head's total, if that is to be checked.

    Raises:
        PayloadError: unknown, missing, repeated or reordered kinds, reserved bits, sizes that do not add up.
    """
    known = len(SECTION_KINDS)
    if not len(MANDATORY) <= num_sections <= known or len(body) < num_sections * _ROW.size:
        raise PayloadError(
            f"{num_sections} sections in {len(body)} bytes; format 1 has {len(MANDATORY)} to {known}"
        )
    rows = [_read_row(body, index) for index in range(num_sections)]
    for index, row in enumerate(rows):
        _check_order(index, row, rows[index - 1].kind if index else 0)
    if num_sections * _ROW.size + sum(row.frame_bytes for row in rows) != len(body):
        raise PayloadError(f"sections do not add up to the {len(body)} bytes of the body")
    if raw_bytes is not None and sum(row.raw_bytes for row in rows) != raw_bytes:
        raise PayloadError(f"sections do not add up to the {raw_bytes} raw bytes of the head")
    return rows


def _read_row(body: memoryview, index: int) -> SectionRow:
    kind, reserved, raw_bytes, frame_bytes = _ROW.unpack_from(body, index * _ROW.size)
    if kind not in SECTION_KINDS:
        raise PayloadError(f"section {index} is of unknown kind {kind}")
    if reserved:
        raise PayloadError(f"reserved bits {reserved:#010x} are set in section {kind_name(kind)}")
    return SectionRow(kind, raw_bytes, frame_bytes)


def _check_order(index: int, row: SectionRow, previous: int) -> None:
    if index < len(MANDATORY):
        expected = MANDATORY[index]
        if row.kind != expected:
            raise PayloadError(
                f"section {index} is of kind {row.kind}; expected {expected} ({expected.name})"
            )
    elif row.kind <= previous:
        raise PayloadError(f"section {kind_name(row.kind)} is repeated or out of order")
    elif not row.raw_bytes:
        raise PayloadError(f"section {kind_name(row.kind)} is optional and empty")


def check_bounds(rows: Sequence[SectionRow], bounds: Mapping[int, int]) -> None:
    """Compare the claims of every section that ``bounds`` names with the most bytes that it may have.

    Raises:
        PayloadError: names the section that claims more.
    """
    for row in rows:
        bound = bounds.get(row.kind)
        if bound is not None and row.raw_bytes > bound:
            raise PayloadError(
                f"section {kind_name(row.kind)} claims {row.raw_bytes} bytes, the limit is {bound}"
            )


def read_frame(body: memoryview, rows: Sequence[SectionRow], kind: int) -> bytes:
    """Decompress the section of ``kind``, whose claim was compared with its bound.

    Raises:
        PayloadError: a bad frame, or one that holds anything but what the table claims.
    """
    start = len(rows) * _ROW.size
    for row in rows:
        if row.kind == kind:
            where = f"section {kind_name(kind)}"
            return decompress(body[start : start + row.frame_bytes], row.raw_bytes, where)
        start += row.frame_bytes
    return b""


def read_sections(body: memoryview, *, num_sections: int, raw_bytes: int, max_bytes: int) -> dict[int, bytes]:
    """Decompress every section of ``body``, each of at most ``max_bytes``.

    Raises:
        PayloadError: see ``read_section_table``, ``check_bounds`` and ``read_frame``.
    """
    rows = read_section_table(body, num_sections, raw_bytes)
    check_bounds(rows, {row.kind: max_bytes for row in rows})
    return {row.kind: read_frame(body, rows, row.kind) for row in rows}
