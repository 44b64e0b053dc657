"""One zstd frame for each section: which parameters make it smallest, and reading frames that lie.

Byte planes have no repetitions worth finding, but skewed byte frequencies. Three ways to make a frame:

- ``entropy``: hardly any search for matches, so almost only Huffman coding; four times as fast as level 1
- the configured level, for sections that do repeat
- ``stored``: blocks that hold the bytes as they are, for sections that cannot shrink

All three are ordinary zstd frames.
"""

import struct
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import zstandard
from numpy.typing import NDArray

from dcr.errors import PayloadError

Raw: TypeAlias = bytes | memoryview
"""Uncompressed bytes."""

_MAX_WINDOW_BYTES = 1 << 27
_STORED_WINDOW_LOG = 17
_STORED_HEAD = struct.Struct("<IBBQ")
_STORED_BLOCK = 1 << _STORED_WINDOW_LOG
_MAGIC = 0xFD2FB528
_EIGHT_BYTES_OF_SIZE = 0xC0
TRY_WHOLE_BYTES = 1 << 18
"""Up to here every way is tried on the whole section; above, on a sample."""
_SLICE_BYTES = 1 << 17
_SAMPLED_SHARE = 16
_WORTH_A_SEARCH = 0.995
"""A level must be this much smaller than ``entropy``: it takes four times as long."""


def compress(raw: Raw, level: int) -> bytes:
    """One frame of ``raw`` at ``level``; nothing for nothing."""
    return _at_level(level).compress(raw) if len(raw) else b""


def compress_smallest(raw: Raw, level: int) -> bytes:
    """The smallest of the three frames of ``raw``, as far as a sample tells; nothing for nothing."""
    if not len(raw):
        return b""
    part = sample(raw)
    frames = _entropy().compress(part), _at_level(level).compress(part)
    search = len(frames[1]) < _WORTH_A_SEARCH * len(frames[0])
    if min(map(len, frames)) >= _stored_size(len(part)):
        return stored(raw)
    if len(part) == len(raw):
        frame = frames[search]
    else:
        frame = (_at_level(level) if search else _entropy()).compress(raw)
    return frame if len(frame) < _stored_size(len(raw)) else stored(raw)


def smallest_size(raw: Raw, level: int) -> int:
    """Bytes of the smallest frame of ``raw``, by trying all three."""
    sizes = (len(_entropy().compress(raw)), len(_at_level(level).compress(raw)), _stored_size(len(raw)))
    return min(sizes)


def sample(raw: Raw, least: int = TRY_WHOLE_BYTES, most: int = 1 << 22) -> Raw:
    """Slices spread over ``raw``, a sixteenth of it but ``least`` to ``most`` bytes; all of what is shorter.

    Slices end at multiples of 8 from the start, so that they hold whole values.
    """
    num_bytes = len(raw)
    if num_bytes <= least:
        return raw
    size = min(max(num_bytes // _SAMPLED_SHARE, least), most)
    count = -(-size // _SLICE_BYTES)
    part = size // count // 8 * 8
    step = (num_bytes - part) // max(1, count - 1) // 8 * 8
    view = memoryview(raw)
    return b"".join(view[index * step :][:part] for index in range(count))


def stored(raw: Raw) -> bytes:
    """A frame of blocks that are not compressed."""
    view = memoryview(raw).cast("B")
    parts: list[bytes | memoryview] = [
        _STORED_HEAD.pack(_MAGIC, _EIGHT_BYTES_OF_SIZE, (_STORED_WINDOW_LOG - 10) << 3, len(view))
    ]
    for start in range(0, len(view), _STORED_BLOCK):
        block = view[start : start + _STORED_BLOCK]
        is_last = start + len(block) == len(view)
        parts += [(is_last | len(block) << 3).to_bytes(3, "little"), block]
    return b"".join(parts)


def _stored_size(num_bytes: int) -> int:
    return _STORED_HEAD.size + 3 * -(-num_bytes // _STORED_BLOCK) + num_bytes


def byte_bits(counts: NDArray[np.integer[Any]]) -> float:
    """Estimate bits of bytes of these ``counts`` [256]: by Huffman codes, or matches if one byte rules."""
    num_bytes, most = int(counts.sum()), int(counts.max())
    present = counts[counts > 0]
    lengths = np.maximum(1.0, np.log2(num_bytes / present))
    # frequencies of a sample look more uneven than they are (Miller and Madow)
    huffman = float((present * lengths).sum()) + 0.72 * (len(present) - 1)
    return min(huffman, 24.0 * (num_bytes - most) + num_bytes / 64)


def _at_level(level: int) -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=level, write_content_size=True, write_checksum=False)


@cache
def _parameters() -> zstandard.ZstdCompressionParameters:
    return zstandard.ZstdCompressionParameters(
        strategy=zstandard.STRATEGY_FAST,
        window_log=17,
        hash_log=6,
        chain_log=6,
        search_log=1,
        min_match=7,
        target_length=0,
        write_content_size=True,
        write_checksum=False,
    )


def _entropy() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(compression_params=_parameters())


def decompress(frame: memoryview, raw_bytes: int, where: str) -> bytes:
    """The ``raw_bytes`` of one frame; no bytes at all are the frame of nothing.

    Raises:
        PayloadError: names ``where``; it is no frame, or holds anything but exactly that many bytes.
    """
    data = bytes(frame)
    if not data and not raw_bytes:
        return b""
    try:
        # The library allocates what the frame's own header claims, whatever max_output_size says,
        # and reads no further than a header (or a skippable frame's) that claims nothing.
        claim = zstandard.frame_content_size(data)
        if claim != raw_bytes or not claim:
            raise PayloadError(f"{where}: the table says {raw_bytes} bytes, its frame says {claim}")
        raw = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW_BYTES).decompress(
            data, max_output_size=raw_bytes, read_across_frames=False, allow_extra_data=False
        )
    except zstandard.ZstdError as err:
        raise PayloadError(f"{where}: {err}") from err
    if len(raw) != raw_bytes:
        raise PayloadError(f"{where}: holds {len(raw)} bytes instead of {raw_bytes}")
    return raw
