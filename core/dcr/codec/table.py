"""Item table section: one row an item, stored column by column. Shapes: N items, D dims of all items.

Little-endian: N, D and the bytes of all names (u64 each), the columns of ``_COLUMNS`` [N] one
after another, dims u64 [D], names (UTF-8, joined).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec.item import MAX_ELEMENTS, is_audit_digest, takes_encoding
from dcr.codec.kinds import ENCODING_IDS, GAP_DTYPES, LOCATION_TYPES, RUN, Layout
from dcr.codec.limits import Limits
from dcr.errors import PayloadError
from dcr.model import AuditDigest, Encoding, bits_dtype, known_dtypes

_ENCODINGS = {wire_id: encoding for encoding, wire_id in ENCODING_IDS.items()}
_HEADER = struct.Struct("<QQQ")
_COLUMNS = {
    "entries": "<u8", "values_at": "<u8", "locations_at": "<u8",
    "digest_total": "<u8", "digest_count": "<u8", "name_bytes": "<u4",
    "dims": "<u1", "dtype": "<u1", "encoding": "<u1", "location_type": "<u1", "flags": "<u1",
}  # fmt: skip
_ROW_BYTES = sum(np.dtype(kind).itemsize for kind in _COLUMNS.values())
_HAS_DIGEST = 1
_LAYOUT_STEP = 2
"""A layout is bits 1 and 2 of the flags."""
_Columns = dict[str, NDArray[np.unsignedinteger[Any]]]


@dataclass(frozen=True, slots=True)
class Row:
    """Everything of an item but its buffers.

    ``values_at`` is a byte offset into the values section, 0 in another ``layout``.
    ``locations_at`` is a byte offset into the locations section for gaps as published, else an element:
    where a run or stride starts, or what the gaps count from.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    encoding: Encoding
    entries: int
    values_at: int
    location_type: int
    locations_at: int
    target_digest: AuditDigest | None
    layout: Layout = Layout.WORDS

    @property
    def num_elements(self) -> int:
        """Elements of the dense tensor."""
        return prod(self.shape)

    @property
    def values_bytes(self) -> int:
        """Bytes of the row in the values section; none in another layout."""
        return self.entries * self.width if self.layout is Layout.WORDS else 0

    @property
    def width(self) -> int:
        """Bytes of one value."""
        return bits_dtype(self.dtype).itemsize

    @property
    def locations_bytes(self) -> int:
        """Bytes in the locations section, where only gaps as published are (their type is a width)."""
        return self.entries * self.location_type if self.location_type in GAP_DTYPES else 0


def max_table_bytes(num_items: int, limits: Limits) -> int:
    """Most bytes that the table of ``num_items`` can have."""
    return _HEADER.size + num_items * (_ROW_BYTES + 8 * limits.max_dims + limits.max_name_bytes)


def write_table(rows: Sequence[Row]) -> bytes:
    """Serialize rows that were checked before."""
    names = [row.name.encode() for row in rows]
    dims = [dim for row in rows for dim in row.shape]
    dtype_ids = {name: index for index, name in enumerate(known_dtypes())}
    digests = [row.target_digest or AuditDigest(0, 0) for row in rows]
    columns = {
        "entries": [row.entries for row in rows],
        "values_at": [row.values_at for row in rows],
        "locations_at": [row.locations_at for row in rows],
        "digest_total": [digest.total for digest in digests],
        "digest_count": [digest.count for digest in digests],
        "name_bytes": [len(name) for name in names],
        "dims": [len(row.shape) for row in rows],
        "dtype": [dtype_ids[row.dtype] for row in rows],
        "encoding": [ENCODING_IDS[row.encoding] for row in rows],
        "location_type": [row.location_type for row in rows],
        "flags": [
            (_HAS_DIGEST if row.target_digest is not None else 0) | _LAYOUT_STEP * row.layout for row in rows
        ],
    }
    parts = [np.array(columns[column], dtype=kind).tobytes() for column, kind in _COLUMNS.items()]
    header = _HEADER.pack(len(rows), len(dims), sum(map(len, names)))
    return b"".join([header, *parts, np.array(dims, dtype="<u8").tobytes(), *names])


def read_table(raw: bytes, *, num_items: int, num_entries: int, limits: Limits) -> list[Row]:
    """Parse the table; ``num_items`` and ``num_entries`` are the head's totals.

    Afterwards every row is well formed by itself and rows tile both buffers in order.

    Raises:
        PayloadError: anything else.
    """
    columns, coded_dims, names = _split(raw, num_items)
    _check_columns(columns, num_entries, limits)
    if int(columns["dims"].sum()) != len(coded_dims) or int(columns["name_bytes"].sum()) != len(names):
        raise PayloadError("item table: dims or name lengths do not add up to what the section holds")
    plain = {column: array.tolist() for column, array in columns.items()}
    dims = coded_dims.tolist()
    rows = []
    dim_at = name_at = 0
    for index in range(num_items):
        values = {column: cells[index] for column, cells in plain.items()}
        dim_end, name_end = dim_at + values["dims"], name_at + values["name_bytes"]
        rows.append(_row(values, tuple(dims[dim_at:dim_end]), bytes(names[name_at:name_end])))
        dim_at, name_at = dim_end, name_end
    _check_tiling(rows)
    return rows


def _split(raw: bytes, num_items: int) -> tuple[_Columns, NDArray[np.uint64], memoryview]:
    if len(raw) < _HEADER.size:
        raise PayloadError(f"item table of {len(raw)} bytes is shorter than its header")
    items, num_dims, name_bytes = _HEADER.unpack_from(raw)
    if items != num_items:
        raise PayloadError(f"item table has {items} items, the head says {num_items}")
    if _HEADER.size + items * _ROW_BYTES + 8 * num_dims + name_bytes != len(raw):
        raise PayloadError(f"item table of {len(raw)} bytes does not hold exactly what its header says")
    at = _HEADER.size
    columns: _Columns = {}
    for column, kind in _COLUMNS.items():
        columns[column] = np.frombuffer(raw, dtype=kind, count=items, offset=at)
        at += columns[column].nbytes
    dims = np.frombuffer(raw, dtype="<u8", count=num_dims, offset=at)
    return columns, dims, memoryview(raw)[at + dims.nbytes :]


def _check_columns(columns: _Columns, num_entries: int, limits: Limits) -> None:
    names = columns["name_bytes"]
    allowed = {
        "dtype": columns["dtype"] < len(known_dtypes()),
        "encoding": np.isin(columns["encoding"], tuple(_ENCODINGS)),
        "location_type": np.isin(columns["location_type"], LOCATION_TYPES),
        "flags": columns["flags"] < _LAYOUT_STEP * len(Layout),
        "dims": columns["dims"] <= limits.max_dims,
        "name_bytes": (names > 0) & (names <= limits.max_name_bytes),
    }
    for column, good in allowed.items():
        if not good.all():
            index = int(np.argmin(good))
            raise PayloadError(f"item {index}: unknown or forbidden {column} {int(columns[column][index])}")
    if sum(columns["entries"].tolist()) != num_entries:
        raise PayloadError(f"items do not add up to the {num_entries} entries of the head")


def _row(cells: dict[str, int], shape: tuple[int, ...], name: bytes) -> Row:
    try:
        text = name.decode()
    except UnicodeDecodeError as err:
        raise PayloadError(f"item name {name[:80]!r} is not UTF-8") from err
    digest = AuditDigest(cells["digest_total"], cells["digest_count"])
    row = Row(
        text, shape, known_dtypes()[cells["dtype"]], _ENCODINGS[cells["encoding"]], cells["entries"],
        cells["values_at"], cells["location_type"], cells["locations_at"],
        digest if cells["flags"] & _HAS_DIGEST else None, Layout(cells["flags"] // _LAYOUT_STEP),
    )  # fmt: skip
    if max(shape, default=0) > MAX_ELEMENTS or not row.entries <= row.num_elements <= MAX_ELEMENTS:
        raise PayloadError(f"item {text!r}: shape {shape} with {row.entries} entries is impossible")
    if not takes_encoding(row.dtype, row.encoding):
        raise PayloadError(f"item {text!r}: {row.encoding} is not for {row.dtype}")
    if row.layout is Layout.PAIRS and row.encoding is not Encoding.DELTA16:
        raise PayloadError(f"item {text!r}: pairs are for delta16, not for {row.encoding}")
    if row.location_type != RUN and not row.entries:
        raise PayloadError(f"item {text!r}: no entries, but gaps")
    if not is_audit_digest(digest, row.num_elements) or (row.target_digest is None and any(digest)):
        raise PayloadError(f"item {text!r}: impossible target digest {tuple(digest)}")
    return row


def _check_tiling(rows: Sequence[Row]) -> None:
    values_at = locations_at = 0
    for row in rows:
        in_section = row.location_type in GAP_DTYPES
        if row.values_at != (values_at if row.layout is Layout.WORDS else 0) or (
            in_section and row.locations_at != locations_at
        ):
            raise PayloadError(f"item {row.name!r}: offsets overlap or leave a hole")
        if not in_section and row.location_type != RUN and row.locations_at >= row.num_elements:
            raise PayloadError(f"item {row.name!r}: starts at {row.locations_at}, outside its shape")
        values_at += row.values_bytes
        locations_at += row.locations_bytes
