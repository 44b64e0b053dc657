"""Write a safetensors file tensor by tensor, straight from the tensors' own memory.

``safetensors.torch.save_file`` first makes a copy of everything as bytes; a training checkpoint is most
of a trainer's memory, so that copy would double it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from dcr.model import stored_bits

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ALIGNMENT = 8
_LENGTH_BYTES = 8


def write_safetensors(
    path: Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str], *, durably: bool = True
) -> None:
    """Write ``tensors``, in their order, and ``metadata`` to ``path``.

    ``durably``: the data are on disk on return. The file's name is not: the caller syncs the folder.

    Raises:
        OSError: the disk failed; what is at ``path`` is worthless.
    """
    try:
        with path.open("wb", buffering=0) as file:
            _write(file.fileno(), _head(tensors, metadata))
            for tensor in tensors.values():
                _write(file.fileno(), stored_bits(tensor).view(np.uint8).data)
            if durably:
                os.fsync(file.fileno())
    except OSError as err:  # of a descriptor it would not say which file
        raise OSError(err.errno, err.strerror, str(path)) from err


def _head(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> bytes:
    entries: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _write(descriptor: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while len(left):  # one call writes 2 GiB at most
        left = left[os.write(descriptor, left) :]
