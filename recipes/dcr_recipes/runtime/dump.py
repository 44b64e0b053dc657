"""Raw bytes of everything a runtime holds, in one file: how a verifier compares instances bit for bit.

Layout: u64 length of the index, little-endian; the index, JSON ``{name: [dtype, shape, offset, bytes]}``
with offsets into the blob; the blob. Tensors that share storage are written once per name.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dcr.errors import PayloadError
from dcr.model import digest_hex, from_json, stored_bits

if TYPE_CHECKING:
    import torch

_HEAD = struct.Struct("<Q")


class RawTensor(NamedTuple):
    """One dumped tensor: torch dtype name without ``torch.``, shape, and its bytes, uint8 [num_bytes]."""

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


def write_dump(path: Path, tensors: Mapping[str, "torch.Tensor"]) -> int:
    """Write every tensor's elements, in row-major order, to ``path``; returns the bytes of the blob."""
    heads = {
        name: _Head(
            str(tensor.dtype).removeprefix("torch."),
            list(tensor.shape),
            tensor.numel() * tensor.element_size(),
        )
        for name, tensor in tensors.items()
    }
    return _write(path, heads, (stored_bits(tensor).data for tensor in tensors.values()))


def join_dumps(path: Path, parts: Mapping[str, Path]) -> int:
    """Write one dump of several, names under the key of their part; returns the bytes of the blob."""
    raw = {f"{key}/{name}": raw for key, part in parts.items() for name, raw in read_dump(part).items()}
    heads = {name: _Head(each.dtype, list(each.shape), each.data.size) for name, each in raw.items()}
    return _write(path, heads, (each.data.data for each in raw.values()))


def rank_file(path: Path, rank: int) -> Path:
    """Where ``rank`` writes its part of the dump at ``path``."""
    return path.with_name(f"{path.name}.rank-{rank}")


class _Head(NamedTuple):
    dtype: str
    shape: list[int]
    num_bytes: int


def _write(path: Path, heads: Mapping[str, _Head], contents: Iterable[memoryview]) -> int:
    offsets = list(accumulate((head.num_bytes for head in heads.values()), initial=0))
    index = {
        name: (head.dtype, head.shape, offset, head.num_bytes)
        for (name, head), offset in zip(heads.items(), offsets, strict=False)
    }
    head = json.dumps(index).encode()
    with path.open("wb") as out:
        out.write(_HEAD.pack(len(head)) + head)
        for content in contents:
            out.write(content)
    return offsets[-1]


def sampled(tensors: Mapping[str, "torch.Tensor"], share: float, sample: str) -> dict[str, "torch.Tensor"]:
    """The ``share`` (0 to 1) of ``tensors`` whose names ``sample`` favours; at least one if there is any.

    Every process that holds tensors of these names picks the same ones.
    """
    if share >= 1:
        return dict(tensors)
    favoured = sorted(tensors, key=lambda name: digest_hex(f"{sample} {name}".encode()))
    kept = set(favoured[: max(1, ceil(share * len(favoured)))])
    return {name: tensor for name, tensor in tensors.items() if name in kept}


def read_dump(path: Path) -> dict[str, RawTensor]:
    """Map the dump at ``path`` read-only; names in the order they were written.

    Raises:
        PayloadError: the file is not a complete dump.
    """
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
        (num_head,) = _HEAD.unpack(data[: _HEAD.size].tobytes())
        start = _HEAD.size + num_head
        index = from_json(dict[str, tuple[str, list[int], int, int]], data[_HEAD.size : start].tobytes())
        return {name: _view(data[start:], *entry) for name, entry in index.items()}
    except (ValueError, struct.error) as err:
        raise PayloadError(f"{path} is not a complete dump: {err}") from err


def _view(blob: NDArray[np.uint8], dtype: str, shape: list[int], offset: int, num_bytes: int) -> RawTensor:
    raw = blob[offset : offset + num_bytes]
    if raw.size != num_bytes:
        raise ValueError(f"a tensor of {num_bytes} bytes at {offset} is cut off")
    return RawTensor(dtype, tuple(shape), raw)
