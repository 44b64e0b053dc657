"""Raw bytes of everything a runtime holds, in one file: how a verifier compares instances bit for bit.

Layout: u64 length of the index, little-endian; the index, JSON ``{name: [dtype, shape, offset, bytes]}``
with offsets into the blob; the blob. Tensors that share storage are written once per name.
"""

import json
import struct
from collections.abc import Mapping
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
    index: dict[str, tuple[str, list[int], int, int]] = {}
    offset = 0
    for name, tensor in tensors.items():
        num_bytes = tensor.numel() * tensor.element_size()
        index[name] = (str(tensor.dtype).removeprefix("torch."), list(tensor.shape), offset, num_bytes)
        offset += num_bytes
    head = json.dumps(index).encode()
    with path.open("wb") as out:
        out.write(_HEAD.pack(len(head)) + head)
        for tensor in tensors.values():
            out.write(stored_bits(tensor).data)
    return offset


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
