"""Body of a payload: a table of sections, then one zstd frame for each that is not empty, in order.

Row of the table: kind u32, reserved u32 (0), raw size u64, compressed size u64, little-endian.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import zstandard

from dcr.errors import PayloadError

_ROW = struct.Struct("<IIQQ")
_MAX_WINDOW_BYTES = 1 << 27


class Kind(IntEnum):
    """Section ids of format v1; later encodings append. All of these must be present, in this order."""

    ITEM_TABLE = 1
    LOCATIONS = 2
    VALUES = 3


@dataclass(frozen=True, slots=True)
class SectionRow:
    """One row of the table: size after decompression, and size of its frame."""

    kind: Kind
    raw_bytes: int
    frame_bytes: int


def write_sections(sections: Sequence[tuple[Kind, bytes]], level: int) -> bytes:
    """Compress ``sections`` at zstd ``level`` and return the body; equal input gives equal bytes."""
    compressor = zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)
    frames = [compressor.compress(raw) if raw else b"" for _, raw in sections]
    rows = [
        _ROW.pack(kind, 0, len(raw), len(frame)) for (kind, raw), frame in zip(sections, frames, strict=True)
    ]
    return b"".join(rows + frames)


def read_sections(
    body: memoryview, *, num_sections: int, raw_bytes: int, bounds: Mapping[Kind, int]
) -> dict[Kind, bytes]:
    """Decompress every section of ``body``.

    ``raw_bytes`` is the head's total, ``bounds`` the most bytes that each kind may hold: both are
    compared with the table's claims before the first frame is touched.

    Raises:
        PayloadError: unknown, missing, repeated or reordered kinds, sizes that do not add up, a bad frame.
    """
    rows = read_section_table(body, num_sections)
    for row in rows:
        if row.raw_bytes > bounds[row.kind]:
            raise PayloadError(
                f"section {row.kind.name} claims {row.raw_bytes} bytes, the limit is {bounds[row.kind]}"
            )
    if sum(row.raw_bytes for row in rows) != raw_bytes:
        raise PayloadError(f"sections do not add up to the {raw_bytes} raw bytes of the head")
    start = num_sections * _ROW.size
    if start + sum(row.frame_bytes for row in rows) != len(body):
        raise PayloadError(f"sections do not add up to the {len(body)} bytes of the body")
    sections = {}
    for row in rows:
        sections[row.kind] = _decompress(body[start : start + row.frame_bytes], row)
        start += row.frame_bytes
    return sections


def read_section_table(body: memoryview, num_sections: int) -> list[SectionRow]:
    """Parse the table alone; its sizes are claims.

    Raises:
        PayloadError: unknown, missing, repeated or reordered kinds, or reserved bits.
    """
    if num_sections != len(Kind) or len(body) < num_sections * _ROW.size:
        raise PayloadError(f"{num_sections} sections in {len(body)} bytes; format 1 has {len(Kind)}")
    rows = []
    for index, expected in enumerate(Kind):
        kind, reserved, raw_bytes, frame_bytes = _ROW.unpack_from(body, index * _ROW.size)
        if kind != expected:
            raise PayloadError(f"section {index} is of kind {kind}; expected {expected} ({expected.name})")
        if reserved:
            raise PayloadError(f"reserved bits {reserved:#010x} are set in section {expected.name}")
        rows.append(SectionRow(expected, raw_bytes, frame_bytes))
    return rows


def _decompress(frame: memoryview, row: SectionRow) -> bytes:
    data = bytes(frame)
    where = f"section {row.kind.name}"
    if not data and not row.raw_bytes:
        return b""
    try:
        # The library allocates what the frame's own header claims, whatever max_output_size says,
        # and reads no further than a header (or a skippable frame's) that claims nothing.
        claim = zstandard.frame_content_size(data)
        if claim != row.raw_bytes or not claim:
            raise PayloadError(f"{where}: the table says {row.raw_bytes} bytes, its frame says {claim}")
        raw = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompress(
            data, max_output_size=row.raw_bytes, read_across_frames=False, allow_extra_data=False
        )
    except zstandard.ZstdError as err:
        raise PayloadError(f"{where}: {err}") from err
    if len(raw) != row.raw_bytes:
        raise PayloadError(f"{where}: holds {len(raw)} bytes instead of {row.raw_bytes}")
    return raw
