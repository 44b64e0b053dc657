"""One file with the bits of a whole version, from an engine's front to its workers.

Layout: 8 bytes length of the header, header (JSON: name -> dtype, offset, number of elements), then the
arrays, each at a multiple of 64 bytes from the file's start. Written and removed by the front within one
restore; nothing of it is trusted later: the restored version is proven by audit.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from typing_extensions import override

from dcr.errors import PayloadError, StoreError
from dcr.model import Bits

_ALIGN = 64


def write(path: Path, tensors: Mapping[str, Bits]) -> None:
    """Write flat unsigned arrays [num_elements] by name. Raises StoreError."""
    table: dict[str, tuple[str, int, int]] = {}
    offset = 0
    for name, bits in tensors.items():
        table[name] = (bits.dtype.str, offset, bits.size)
        offset += -(-bits.nbytes // _ALIGN) * _ALIGN
    header = json.dumps(table).encode()
    start = _start(len(header))
    try:
        with path.open("xb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            for name, bits in tensors.items():
                file.seek(start + table[name][1])
                file.write(np.ascontiguousarray(bits).data)
    except OSError as err:
        raise StoreError(f"exchange: cannot write {path}: {err.strerror}") from err


def read(path: Path) -> "Tensors":
    """The arrays of ``path``, mapped into memory, read-only. Raises PayloadError."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            table = json.loads(file.read(length))
    except (OSError, ValueError) as err:
        raise PayloadError(f"exchange: {path} cannot be read: {err}") from err
    return Tensors(path, _start(length), {name: (d, int(o), int(n)) for name, (d, o, n) in table.items()})


class Tensors(Mapping[str, Bits]):
    """The arrays of one file; each is mapped when it is asked for."""

    def __init__(self, path: Path, start: int, table: dict[str, tuple[str, int, int]]) -> None:
        self._path = path
        self._start = start
        self._table = table

    @override
    def __getitem__(self, name: str) -> Bits:
        dtype, offset, num = self._table[name]
        if num == 0:
            return np.zeros(0, dtype)
        return np.memmap(self._path, dtype, mode="c", offset=self._start + offset, shape=(num,))

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    @override
    def __len__(self) -> int:
        return len(self._table)


def _start(header_bytes: int) -> int:
    return -(-(8 + header_bytes) // _ALIGN) * _ALIGN
