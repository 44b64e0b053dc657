"""The codec's inner loops in numpy. C numbers, E elements, B blocks."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dcr.codec.engines import Bytes, Indices, RiceReader, Words, unzigzagged, zigzagged
from dcr.codec.frames import Raw
from dcr.codec.kinds import BLOCK, SMALL
from dcr.errors import PayloadError
from dcr.model import Bits

_CHUNK = 1 << 13
"""Numbers whose bits are unpacked at once; a multiple of 8, so that a chunk of low bits ends with a byte."""


class Vectorized:
    """See ``dcr.codec.engines.Engine``."""

    def rice(self, numbers: Indices, base: int, low_bits: int) -> tuple[Raw, Raw]:
        """Unary and low bits of ``numbers`` [C > 0]; both end with a byte."""
        gaps = np.diff(numbers, prepend=np.int64(base - 1)) - 1
        ends = np.cumsum((gaps >> low_bits) + 1) - 1
        bits = np.zeros(int(ends[-1]) + 1, np.uint8)
        bits[ends] = 1
        places = np.arange(low_bits, dtype=np.int64)
        low = [
            np.packbits((gaps[at : at + _CHUNK, None] >> places & 1).astype(np.uint8), bitorder="little")
            for at in range(0, len(gaps), _CHUNK)
        ]
        return np.packbits(bits, bitorder="little").data, np.concatenate(low).data

    def reader(self, unary: bytes, low: bytes, most: int) -> RiceReader:
        """Read what ``rice`` wrote, joined."""
        return _VectorReader(unary, low, most)

    def mask(self, locations: Indices, base: int) -> tuple[Indices, Words]:
        """Blocks [B] and masks [B] of ``locations`` [E > 0]."""
        relative = locations - base
        blocks = relative // BLOCK
        first = np.flatnonzero(np.diff(blocks, prepend=np.int64(-1)))
        bits = np.uint64(1) << (relative % BLOCK).astype(np.uint64)
        return blocks[first], np.bitwise_or.reduceat(bits, first).astype("<u8")

    def unmask(self, blocks: Indices, masks: Words, base: int, num_entries: int) -> Indices:
        """Locations [E] of ``masks`` [B]."""
        found = np.empty(num_entries, np.int64)
        filled = 0
        for at in range(0, len(blocks), _CHUNK):
            bits = np.unpackbits(masks[at : at + _CHUNK].view(np.uint8), bitorder="little")
            where = np.flatnonzero(bits)
            part = blocks[at : at + _CHUNK][where // BLOCK] * BLOCK + (where % BLOCK + base)
            found[filled : filled + len(part)] = part
            filled += len(part)
        return found

    def split(self, values: Bits, planes: Bytes, at: int, zigzag: bool) -> None:
        """Bytes of ``values`` [E] as columns."""
        coded = zigzagged(values) if zigzag else values
        columns = coded.view(np.uint8).reshape(len(values), -1)
        planes[:, at : at + len(values)] = columns.T

    def join(self, planes: tuple[Bytes, ...], zigzag: bool) -> Bits:
        """Values [E] of planes [E]."""
        columns = np.empty((len(planes[0]), len(planes)), np.uint8)
        for index, plane in enumerate(planes):
            columns[:, index] = plane
        values: Bits = columns.reshape(-1).view(f"<u{len(planes)}")
        return unzigzagged(values) if zigzag else values.copy()

    def pair(self, values: Bits) -> tuple[Bytes, NDArray[np.uint16]]:
        """Half bytes and excess of ``values`` [E]."""
        coded = zigzagged(values)
        halves = np.zeros(len(values) + len(values) % 2, np.uint8)
        halves[: len(values)] = np.minimum(coded, SMALL)
        pairs: Bytes = halves[::2] | halves[1::2] << np.uint8(4)
        excess: NDArray[np.uint16] = coded[coded >= SMALL] - np.uint16(SMALL)
        return pairs, excess

    def unpair(self, pairs: Bytes, excess: NDArray[np.uint16], num_entries: int) -> Bits:
        """Values [E]."""
        coded = np.empty(2 * len(pairs), np.uint16)
        coded[::2], coded[1::2] = pairs & 15, pairs >> 4
        coded = coded[:num_entries]
        coded[coded == SMALL] += excess
        return unzigzagged(coded)


class _VectorReader:
    """Finds the end of every unary number once, then hands them out."""

    def __init__(self, unary: bytes, low: bytes, most: int) -> None:
        self._most = most
        self._unary, self._low = np.frombuffer(unary, np.uint8), np.frombuffer(low, np.uint8)
        self._taken = self._unary_at = self._low_at = 0

    @property
    def position(self) -> tuple[int, int]:
        """Bytes taken from the unary and from the low bits."""
        return self._unary_at, self._low_at

    @cached_property
    def _ends(self) -> Indices:
        bits = np.unpackbits(self._unary, bitorder="little")
        if np.count_nonzero(bits) > self._most:  # before 8 bytes are spent on each
            raise PayloadError(f"coded gaps are more than the {self._most} entries")
        return np.flatnonzero(bits)

    def take(self, count: int, low_bits: int, limit: int) -> Indices:
        """The next numbers; no intermediate value leaves the range of uint64."""
        ends = self._ends[self._taken : self._taken + count]
        start = 8 * self._unary_at
        low_bytes = -(-count * low_bits // 8)
        if len(ends) < count or ends[0] < start or self._low_at + low_bytes > len(self._low):
            raise PayloadError("coded gaps end too early")
        high = np.diff(ends, prepend=start - 1).astype(np.uint64) - np.uint64(1)
        if int(high.max()) > limit >> low_bits:
            raise PayloadError(f"gaps lead beyond {limit}")
        steps = high << np.uint64(low_bits) | self._take_low(count, low_bits)
        self._taken += count
        self._unary_at = int(ends[-1]) // 8 + 1
        steps += np.uint64(1)
        numbers = np.cumsum(steps)
        # every step is at most 2**63 + 2**62: a sum that wraps around modulo 2**64 falls at that very step
        if int(numbers[-1]) > limit or bool((numbers[1:] <= numbers[:-1]).any()):
            raise PayloadError(f"gaps lead beyond {limit}")
        numbers -= np.uint64(1)
        return numbers.view(np.int64)

    def _take_low(self, count: int, low_bits: int) -> Words:
        numbers = np.zeros(count, np.uint64)
        for at in range(0, count if low_bits else 0, _CHUNK):
            part = numbers[at : at + _CHUNK]
            coded = self._low[self._low_at + at * low_bits // 8 :][: -(-len(part) * low_bits // 8)]
            bits = np.unpackbits(coded, bitorder="little")
            if bits[len(part) * low_bits :].any():
                raise PayloadError("bits are set after the last low bits of an item")
            for place, column in enumerate(bits[: len(part) * low_bits].reshape(-1, low_bits).T):
                part |= column.astype(np.uint64) << np.uint64(place)
        self._low_at += -(-count * low_bits // 8)
        return numbers

    def finish(self) -> None:
        """A bit that is set after an item's last number counts as the next number, or is left over."""
        if (self._unary_at, self._low_at) != (len(self._unary), len(self._low)) or self._taken != len(
            self._ends
        ):
            raise PayloadError("coded gaps do not end with their sections")
