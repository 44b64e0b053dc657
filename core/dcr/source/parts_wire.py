"""Parts of residual tensors between trainer ranks: a JSON head and raw bits; never pickled (R5)."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcr.errors import ConfigError, PayloadError
from dcr.indexmap import Box, IndexMap
from dcr.model import Bits, from_json, to_json
from dcr.source.residual import Part

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class _Head:
    name: str
    width: int
    src_size: int
    dst_size: int
    boxes: tuple[tuple[tuple[int, ...], int, tuple[int, ...], int, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Heads:
    parts: tuple[_Head, ...]


def pack_parts(parts: Sequence[Part]) -> bytes:
    """One message: length of the head, the head, then each part's bits, little endian."""
    heads = _Heads(tuple(_head(part) for part in parts))
    head = to_json(heads)
    bits = (
        np.ascontiguousarray(part.bits).astype(part.bits.dtype.newbyteorder("<"), copy=False)
        for part in parts
    )
    return b"".join((_LENGTH.pack(len(head)), head, *(one.tobytes() for one in bits)))


def unpack_parts(message: bytes) -> list[Part]:
    """The parts of a message; bits alias it.

    Raises:
        PayloadError: it is no such message, or cut off.
    """
    if len(message) < _LENGTH.size:
        raise PayloadError(f"a message of residual parts has {len(message)} bytes, no length")
    (length,) = _LENGTH.unpack_from(message)
    at = _LENGTH.size + length
    if at > len(message):
        raise PayloadError("a message of residual parts is cut off in its head")
    parts = []
    for head in from_json(_Heads, message[_LENGTH.size : at]).parts:
        end = at + head.src_size * head.width
        if head.src_size < 0 or head.width not in (1, 2, 4, 8) or end > len(message):
            raise PayloadError(
                f"residual part of {head.name!r}: {head.src_size} x {head.width} bytes do not fit"
            )
        bits: Bits = np.frombuffer(message[at:end], dtype=f"<u{head.width}")
        parts.append(Part(head.name, _map(head), bits))
        at = end
    if at != len(message):
        raise PayloadError(f"a message of residual parts has {len(message) - at} bytes too many")
    return parts


def _head(part: Part) -> _Head:
    boxes = tuple(
        (box.shape, box.src_offset, box.src_strides, box.dst_offset, box.dst_strides)
        for box in part.map.boxes
    )
    return _Head(part.name, part.bits.dtype.itemsize, part.map.src_size, part.map.dst_size, boxes)


def _map(head: _Head) -> IndexMap:
    try:
        return IndexMap(tuple(Box(*box) for box in head.boxes), head.src_size, head.dst_size)
    except ConfigError as err:
        raise PayloadError(f"residual part of {head.name!r}: {err}") from err
