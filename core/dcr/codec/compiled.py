"""The codec's inner loops, compiled on first use and kept on disk. C numbers, E elements, B blocks."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec import kernels
from dcr.codec.engines import Bytes, Indices, RiceReader, Words, words_of
from dcr.codec.frames import Raw
from dcr.codec.kinds import BLOCK
from dcr.errors import PayloadError
from dcr.model import Bits

_DEBRUIJN = 0x03F79D71B4CB0A89


def _bit_numbers() -> Words:
    """Bit number of x = 1 << n under its hash, the top six bits of x times the constant."""
    table = np.zeros(64, np.uint64)
    for bit in range(64):
        table[((_DEBRUIJN << bit) & 0xFFFFFFFFFFFFFFFF) >> 58] = bit
    return table


class Compiled:
    """See ``dcr.codec.engines.Engine``."""

    def rice(self, numbers: Indices, base: int, low_bits: int) -> tuple[Raw, Raw]:
        """Unary and low bits of ``numbers`` [C > 0]; both end with a byte."""
        count = len(numbers)
        # floors add up to no more than the floor of the sum
        most_bits = count + ((int(numbers[-1]) - base + 1 - count) >> low_bits)
        unary = np.zeros(most_bits // 8 + 1, np.uint8)
        low = np.zeros(count * low_bits // 64 + 2, np.uint64)
        used = kernel("rice")(numbers, base, low_bits, unary, low)
        return unary[: -(-used // 8)].data, low.view(np.uint8)[: -(-count * low_bits // 8)].data

    def reader(self, unary: bytes, low: bytes, most: int) -> RiceReader:
        """Read what ``rice`` wrote, joined, number by number."""
        return _CompiledReader(unary, low)

    def mask(self, locations: Indices, base: int) -> tuple[Indices, Words]:
        """Blocks [B] and masks [B] of ``locations`` [E > 0]."""
        most = min(len(locations), (int(locations[-1]) - base) // BLOCK + 1)
        blocks, masks = np.empty(most, np.int64), np.empty(most, np.uint64)
        count = kernel("mask")(locations, base, blocks, masks)
        return blocks[:count], masks[:count]

    def unmask(self, blocks: Indices, masks: Words, base: int, num_entries: int) -> Indices:
        """Locations [E] of ``masks`` [B]."""
        found = np.empty(num_entries, np.int64)
        kernel("unmask")(blocks, masks, base, _bit_numbers(), found)
        return found

    def split(self, values: Bits, planes: Bytes, at: int, zigzag: bool) -> None:
        """Bytes of ``values`` [E] as columns."""
        kernel(f"split{values.dtype.itemsize}")(values, planes, at, zigzag)

    def join(self, planes: tuple[Bytes, ...], zigzag: bool) -> Bits:
        """Values [E] of planes [E]."""
        values: Bits = np.empty(len(planes[0]), f"<u{len(planes)}")
        kernel(f"join{len(planes)}")(*planes, zigzag, values)
        return values

    def pair(self, values: Bits) -> tuple[Bytes, NDArray[np.uint16]]:
        """Half bytes and excess of ``values`` [E]."""
        pairs = np.zeros((len(values) + 1) // 2, np.uint8)
        excess = np.empty(len(values), np.uint16)
        return pairs, excess[: kernel("pair")(values, pairs, excess)]

    def unpair(self, pairs: Bytes, excess: NDArray[np.uint16], num_entries: int) -> Bits:
        """Values [E]."""
        values: Bits = np.empty(num_entries, np.uint16)
        kernel("unpair")(pairs, excess, values)
        return values


class _CompiledReader:
    def __init__(self, unary: bytes, low: bytes) -> None:
        self._num_bytes = (len(unary), len(low))
        self._unary, self._low = words_of(unary), words_of(low)
        self._unary_at = self._low_at = 0
        self._bits = _bit_numbers()

    @property
    def position(self) -> tuple[int, int]:
        """Bytes taken from the unary and from the low bits."""
        return self._unary_at, self._low_at

    def take(self, count: int, low_bits: int, limit: int) -> Indices:
        """The next numbers."""
        low_end = self._low_at + -(-count * low_bits // 8)
        if low_end > self._num_bytes[1]:
            raise PayloadError("coded gaps end too early")
        numbers = np.empty(count, np.int64)
        end = kernel("unrice")(
            self._unary, 8 * self._unary_at, self._low, 8 * self._low_at, low_bits, limit, self._bits, numbers
        )
        if end == kernels.TOO_SHORT:
            raise PayloadError("coded gaps end too early")
        if end == kernels.TOO_FAR:
            raise PayloadError(f"gaps lead beyond {limit}")
        self._unary_at, self._low_at = -(-end // 8), low_end
        self._check_padding(self._unary, end)
        self._check_padding(self._low, 8 * low_end - (-count * low_bits) % 8)
        return numbers

    @staticmethod
    def _check_padding(words: Words, end_bit: int) -> None:
        """Bits from ``end_bit`` to the end of its byte must be 0."""
        if end_bit % 8 and int(words.view(np.uint8)[end_bit // 8]) >> end_bit % 8:
            raise PayloadError("bits are set after the last bits of an item")

    def finish(self) -> None:
        """Both sections end with the last item."""
        if (self._unary_at, self._low_at) != self._num_bytes:
            raise PayloadError("coded gaps do not end with their sections")


@cache
def kernel(name: str) -> Callable[..., Any]:
    """Compile one loop; read-only signatures take writable arrays too, so one version serves all."""
    import numba  # here, so that importing this module does not load a compiler

    function, signature = _signatures()[name]
    built: Callable[..., Any]
    try:
        built = numba.njit(signature, nogil=True, cache=True)(function)
    except RuntimeError:  # nowhere to keep compiled code (read-only installation): compile in each process
        built = numba.njit(signature, nogil=True)(function)
    return built


@cache
def _signatures() -> dict[str, tuple[Callable[..., Any], Any]]:
    """Each loop by its name, and numba's type of it."""
    from numba import types

    numbers, words = _array(types.int64), _array(types.uint64)
    octets = _array(types.uint8)
    signatures: dict[str, tuple[Callable[..., Any], Any]] = {
        "rice": (
            kernels.rice,
            types.int64(numbers, types.int64, types.int64, types.uint8[::1], types.uint64[::1]),
        ),
        "unrice": (
            kernels.unrice,
            types.int64(
                words, types.int64, words, types.int64, types.int64, types.int64, words, types.int64[::1]
            ),
        ),
        "mask": (kernels.mask, types.int64(numbers, types.int64, types.int64[::1], types.uint64[::1])),
        "unmask": (kernels.unmask, types.void(numbers, words, types.int64, words, types.int64[::1])),
    }
    short = _array(types.uint16)
    signatures["pair"] = (kernels.pair, types.int64(short, types.uint8[::1], types.uint16[::1]))
    signatures["unpair"] = (kernels.unpair, types.void(octets, short, types.uint16[::1]))
    for width, join in kernels.JOINS.items():
        value = getattr(types, f"uint{8 * width}")
        signatures[f"split{width}"] = (
            kernels.split2 if width == 2 else kernels.split,
            types.void(_array(value), types.uint8[:, :], types.int64, types.boolean),
        )
        signatures[f"join{width}"] = (join, types.void(*[octets] * width, types.boolean, value[::1]))
    return signatures


def _array(element: Any) -> Any:
    from numba import types

    return types.Array(element, 1, "C", readonly=True)
