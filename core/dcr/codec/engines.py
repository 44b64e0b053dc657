"""Two implementations of the codec's inner loops with identical results: compiled and numpy.

The compiled one takes half a second to load, so small payloads do not ask for it.
"""

import sys
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.codec.frames import Raw
from dcr.model import Bits

EngineName: TypeAlias = Literal["auto", "compiled", "numpy"]
Bytes: TypeAlias = NDArray[np.uint8]
Words: TypeAlias = NDArray[np.uint64]
Indices: TypeAlias = NDArray[np.int64]

COMPILED_ENTRIES = 1 << 14
"""From here on ``auto`` is the compiled one."""


class RiceReader(Protocol):
    """Reads the two bit sections front to back, item by item."""

    @property
    def position(self) -> tuple[int, int]:
        """Bytes taken from the unary and from the low bits."""

    def take(self, count: int, low_bits: int, limit: int) -> Indices:
        """The next numbers [count], strictly increasing from 0 or more and below ``limit``.

        Raises:
            PayloadError: they are not, or the sections end before.
        """

    def finish(self) -> None:
        """Check that both sections are used up.

        Raises:
            PayloadError: they are not.
        """


class Engine(Protocol):
    """C numbers, E elements of W bytes, B blocks of 64 locations. Arrays are contiguous."""

    def rice(self, numbers: Indices, base: int, low_bits: int) -> tuple[Raw, Raw]:
        """Unary and low bits of the gaps of ``numbers`` [C], strictly increasing from ``base`` or more."""

    def reader(self, unary: bytes, low: bytes, most: int) -> RiceReader:
        """Read what ``rice`` wrote, joined: ``most`` numbers or fewer."""

    def mask(self, locations: Indices, base: int) -> tuple[Indices, Words]:
        """Blocks [B] that hold any of ``locations`` [E > 0], counted from ``base``, and their masks [B]."""

    def unmask(self, blocks: Indices, masks: Words, base: int, num_entries: int) -> Indices:
        """Locations [num_entries], the inverse of ``mask``; ``masks`` [B] have so many bits set."""

    def split(self, values: Bits, planes: Bytes, at: int, zigzag: bool) -> None:
        """Write byte j of each of ``values`` [E] to ``planes[j, at : at + E]``, j < W.

        ``zigzag``: values are differences of 2 bytes, written as ``zigzagged``.
        """

    def join(self, planes: tuple[Bytes, ...], zigzag: bool) -> Bits:
        """Values [E], the inverse of ``split``: a new array; W ``planes`` [E]."""

    def pair(self, values: Bits) -> tuple[Bytes, NDArray[np.uint16]]:
        """Half bytes of the differences ``values`` [E], two a byte, and what large ones exceed them by."""

    def unpair(self, pairs: Bytes, excess: NDArray[np.uint16], num_entries: int) -> Bits:
        """Differences [num_entries], the inverse of ``pair``: a new array.

        ``pairs`` [ceil(num_entries / 2)]; ``excess`` has one number for each half byte of 15.
        """


def engine_of(name: EngineName, num_entries: int) -> Engine:
    """The implementation for a payload of ``num_entries``."""
    from dcr.codec.vectorized import Vectorized

    if name == "numpy" or sys.byteorder != "little":
        return Vectorized()
    if name == "auto" and num_entries < COMPILED_ENTRIES:
        return Vectorized()
    from dcr.codec.compiled import Compiled

    return Compiled()


def words_of(section: bytes) -> Words:
    """Little-endian words [at least one more than the bytes need], so that a kernel may read ahead."""
    padded: Words = np.zeros(len(section) // 8 + 2, "<u8")
    padded.view(np.uint8)[: len(section)] = np.frombuffer(section, np.uint8)
    return padded


def zigzagged(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Differences modulo 2^16, of 2 bytes, as their places [same shape] in 0, -1, 1, -2, ..., from 0."""
    signed = values.view(np.int16)
    coded: NDArray[np.uint16] = ((signed << 1) ^ (signed >> 15)).view(np.uint16)
    return coded


def unzigzagged(coded: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Differences modulo 2^16 [same shape], the inverse of ``zigzagged``."""
    values: NDArray[np.uint16] = (coded >> np.uint16(1)) ^ (np.uint16(0) - (coded & np.uint16(1)))
    return values
