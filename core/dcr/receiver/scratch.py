"""The reusable host scratch (paper section 6.1, Figure 6 top, DESIGN R9, R10).

Holds one canonical tensor at a time. Between items every byte of ``[0, extent)`` is background:
zero after an XOR or delta item, the placeholder after an overwrite item, so only touched positions are
restored and a run of items of one kind never refills the whole.
"""

import numpy as np
import torch

from dcr.model import Bits, Encoding, TensorSpec, bits_dtype
from dcr.receiver.lanes import lanes, torch_dtype

_DEFAULT_NAN = {
    "float8_e4m3fn": 0x7F, "float8_e5m2": 0x7F, "float16": 0x7E00, "bfloat16": 0x7FC0,
    "float32": 0x7FC0_0000, "float64": 0x7FF8_0000_0000_0000,
}  # fmt: skip


def choose_placeholder(dtype: str, values: Bits) -> int | None:
    """A bit pattern that none of ``values`` [E] has: NaN by default, else the least unused pattern.

    None if there is no such pattern (all 256 of a 1-byte type are used), and for bool, whose
    bytes must stay 0 or 1; then the caller must not depend on a placeholder.
    """
    if dtype == "bool":
        return None
    width = bits_dtype(dtype)
    preferred = _DEFAULT_NAN.get(dtype, 1 << (8 * width.itemsize - 1))
    if not np.any(values == width.type(preferred)):
        return preferred
    used = np.unique(values)
    gaps = np.flatnonzero(used != np.arange(used.size, dtype=np.uint64))
    first = int(gaps[0]) if gaps.size else used.size
    return first if first < 1 << (8 * width.itemsize) else None


class Scratch:
    """Host memory for the largest canonical tensor, plus one flag a element of it, made on demand."""

    def __init__(self, num_bytes: int, num_elements: int) -> None:
        self._memory = torch.zeros(num_bytes, dtype=torch.uint8)
        self._num_elements = num_elements
        self._flags: torch.Tensor | None = None
        self._background = (1, 0)
        self._extent = num_bytes
        self._placeholder: int | None = None
        self._by_flags = False

    @classmethod
    def for_tensors(cls, tensors: tuple[TensorSpec, ...]) -> "Scratch":
        """Reserve for the largest of ``tensors`` (DESIGN R11)."""
        return cls(
            max((spec.num_bytes for spec in tensors), default=0),
            max((spec.num_elements for spec in tensors), default=0),
        )

    def view(self, spec: TensorSpec) -> torch.Tensor:
        """A fresh contiguous tensor [spec.shape] of ``spec``'s dtype: loaders leave attributes on theirs."""
        return self._memory[: spec.num_bytes].view(torch_dtype(spec.dtype)).view(spec.shape)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` shares the scratch's storage."""
        storage = tensor.untyped_storage()
        return storage.nbytes() > 0 and storage.data_ptr() == self._memory.untyped_storage().data_ptr()

    def bits(self, spec: TensorSpec) -> Bits:
        """Flat unsigned view [num_elements] of the item's memory."""
        view: Bits = self._memory.numpy()[: spec.num_bytes].view(bits_dtype(spec.dtype))
        return view

    def fill(self, spec: TensorSpec, encoding: Encoding, locations: np.ndarray, values: Bits) -> None:
        """Lay out one item: ``values`` [E] at flat ``locations`` int64 [E], inactive positions elsewhere."""
        overwrites = encoding is Encoding.OVERWRITE
        placeholder = choose_placeholder(spec.dtype, values) if overwrites else None
        self._placeholder = placeholder
        self._by_flags = overwrites and placeholder is None
        self._set_background(bits_dtype(spec.dtype).itemsize, placeholder or 0, spec.num_bytes)
        self.bits(spec)[locations] = values
        if self._by_flags:
            self._flag_array()[locations] = True

    def clear(self, spec: TensorSpec, locations: np.ndarray) -> None:
        """Restore ``locations`` [E] that ``fill`` touched; must follow every ``fill``, also a failed one."""
        width = bits_dtype(spec.dtype)
        self.bits(spec)[locations] = width.type(self._background[1])
        if self._by_flags:
            self._flag_array()[locations] = False
        self._by_flags = False

    def active(self, source: torch.Tensor) -> torch.Tensor:
        """Boolean mask, shaped as ``source`` (a view of the scratch), of the item's positions.

        The placeholder tells them apart; where the item leaves no pattern unused, flags kept beside
        the scratch do, read with the geometry of ``source``.
        """
        if self._by_flags:
            self._flag_array()
            assert self._flags is not None
            return self._flags.as_strided(source.shape, source.stride(), source.storage_offset())
        assert self._placeholder is not None
        bits = 8 * source.element_size()
        signed = self._placeholder - (1 << bits if self._placeholder >> (bits - 1) else 0)
        found = np.empty(tuple(source.shape), dtype=bool)
        np.not_equal(lanes(source).numpy(), np.dtype(f"i{source.element_size()}").type(signed), out=found)
        return torch.from_numpy(found)

    def _flag_array(self) -> np.ndarray:
        if self._flags is None:
            self._flags = torch.zeros(self._num_elements, dtype=torch.bool)
        array: np.ndarray = self._flags.numpy()
        return array

    def _set_background(self, width_bytes: int, pattern: int, num_bytes: int) -> None:
        wanted = (width_bytes, pattern) if pattern else (1, 0)
        start = self._extent if wanted == self._background else 0
        if start < num_bytes:
            unit = np.dtype(f"<u{width_bytes}")
            start -= start % width_bytes
            self._memory.numpy()[start:num_bytes].view(unit)[:] = unit.type(pattern)
        if wanted != self._background or num_bytes > self._extent:
            self._extent = num_bytes
        self._background = wanted
