"""Loops that ``dcr.codec.compiled`` compiles: plain Python, on bits. Bit 0 is the least significant.

Every number that takes part in 64-bit arithmetic is unsigned: mixed signs would become floats.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"
# ruff: noqa: ANN001, ANN201
from typing import Any

import numpy as np

from dcr.codec.kinds import SMALL

TOO_SHORT = -1
TOO_FAR = -2
_DEBRUIJN = np.uint64(0x03F79D71B4CB0A89)
_HASH = np.uint64(58)


def rice(numbers, base, low_bits, unary, low) -> Any:
    """Write gaps of ``numbers`` to zeroed ``unary`` (bytes) and ``low`` (words); return the unary bits."""
    width = np.uint64(low_bits)
    mask = (np.uint64(1) << width) - np.uint64(1)
    following = np.uint64(base)
    at = np.uint64(0)
    low_at = np.uint64(0)
    for index in range(numbers.size):
        number = np.uint64(numbers[index])
        gap = number - following
        following = number + np.uint64(1)
        at += gap >> width
        unary[at >> np.uint64(3)] |= np.uint8(np.uint64(1) << (at & np.uint64(7)))
        at += np.uint64(1)
        word = low_at >> np.uint64(6)
        shift = low_at & np.uint64(63)
        rest = gap & mask
        low[word] |= rest << shift
        if shift + width > np.uint64(64):
            low[word + np.uint64(1)] |= rest >> (np.uint64(64) - shift)
        low_at += width
    return np.int64(at)


def unrice(unary, bit, low, low_bit, low_bits, limit, bit_numbers, numbers) -> Any:  # noqa: PLR0913 -- a kernel
    """Fill ``numbers`` [C > 0]; return the bit after the last one used, or TOO_SHORT or TOO_FAR.

    ``unary`` and ``low`` have a word of zeros to spare; ``low`` is long enough. Words are read whole, and
    each bit that is set ends one number.
    """
    width = np.uint64(low_bits)
    mask = (np.uint64(1) << width) - np.uint64(1)
    end = np.uint64(limit)
    most = end >> width
    low_at = np.uint64(low_bit)
    following = np.uint64(0)
    start = np.uint64(bit)
    word = start >> np.uint64(6)
    ones = np.uint64(0)
    if word < np.uint64(unary.size):
        ones = unary[word] >> (start & np.uint64(63)) << (start & np.uint64(63))
    for index in range(numbers.size):
        while ones == np.uint64(0):
            word += np.uint64(1)
            if word >= np.uint64(unary.size):
                return TOO_SHORT
            ones = unary[word]
        lowest = ones & (~ones + np.uint64(1))
        ones ^= lowest
        at = (word << np.uint64(6)) + bit_numbers[(lowest * _DEBRUIJN) >> _HASH]
        high = at - start
        start = at + np.uint64(1)
        shift = low_at & np.uint64(63)
        place = low_at >> np.uint64(6)
        # both words always: a branch on the shift would be guessed wrong too often
        rest = low[place] >> shift | low[place + np.uint64(1)] << np.uint64(1) << (np.uint64(63) - shift)
        low_at += width
        following += (high << width) + (rest & mask)
        if high > most or following >= end:
            return TOO_FAR
        numbers[index] = np.int64(following)
        following += np.uint64(1)
    return np.int64(start)


def mask(locations, base, blocks, masks) -> int:
    """Blocks of 64 elements from ``base`` that hold any of ``locations``; return their number."""
    count = 0
    current = np.int64(-1)
    bits = np.uint64(0)
    for index in range(locations.size):
        place = locations[index] - base
        block = place >> 6
        if block != current:
            if count > 0:
                masks[count - 1] = bits
            blocks[count] = block
            count += 1
            current = block
            bits = np.uint64(0)
        bits |= np.uint64(1) << np.uint64(place & 63)
    masks[count - 1] = bits
    return count


def unmask(blocks, masks, base, bit_numbers, found):
    """Write the elements of all masks to ``found``, which has exactly as many places."""
    count = 0
    for index in range(blocks.size):
        ones = masks[index]
        first = (blocks[index] << 6) + base
        while ones != np.uint64(0):
            lowest = ones & (~ones + np.uint64(1))
            ones ^= lowest
            found[count] = first + np.int64(bit_numbers[(lowest * _DEBRUIJN) >> _HASH])
            count += 1


def split(values, planes, at, _zigzag):
    """Bytes of any width; differences have two bytes (``split2``)."""
    for byte in range(planes.shape[0]):
        for index in range(values.size):
            planes[byte, at + index] = np.uint8((values[index] >> (8 * byte)) & 255)


def split2(values, planes, at, zigzag):
    """Bytes of words of 16 bits, zigzagged if they are differences."""
    for index in range(values.size):
        value = np.uint32(values[index])
        if zigzag:
            value = ((value << 1) ^ (np.uint32(0xFFFF) * (value >> 15))) & np.uint32(0xFFFF)
        planes[0, at + index] = np.uint8(value & 255)
        planes[1, at + index] = np.uint8(value >> 8)


def pair(values, pairs, excess) -> Any:
    """Zigzag ``values`` into half bytes of zeroed ``pairs``; return how many wrote to ``excess``."""
    count = 0
    for index in range(values.size):
        value = np.uint32(values[index])
        value = ((value << 1) ^ (np.uint32(0xFFFF) * (value >> 15))) & np.uint32(0xFFFF)
        if value >= SMALL:
            excess[count] = value - SMALL
            count += 1
            value = np.uint32(SMALL)
        pairs[index >> 1] |= np.uint8(value << np.uint32(4 * (index & 1)))
    return count


def unpair(pairs, excess, values):
    """Inverse of ``pair``."""
    count = 0
    for index in range(values.size):
        value = np.uint32((pairs[index >> 1] >> (4 * (index & 1))) & 15)
        if value == SMALL:
            value += np.uint32(excess[count])
            count += 1
        value = (value >> 1) ^ (np.uint32(0xFFFF) * (value & 1))
        values[index] = np.uint16(value)


def join1(plane, _zigzag, values):
    """One byte each."""
    values[:] = plane


def join2(low, high, zigzag, values):
    """Two bytes each, and zigzag undone if they are differences."""
    for index in range(values.size):
        value = np.uint32(low[index]) | np.uint32(high[index]) << 8
        if zigzag:
            value = (value >> 1) ^ (np.uint32(0xFFFF) * (value & 1))
        values[index] = np.uint16(value)


def join4(b0, b1, b2, b3, _zigzag, values):
    """Four bytes each."""
    for index in range(values.size):
        low = np.uint32(b0[index]) | np.uint32(b1[index]) << 8
        values[index] = np.uint32(low | np.uint32(b2[index]) << 16 | np.uint32(b3[index]) << 24)


def join8(b0, b1, b2, b3, b4, b5, b6, b7, _zigzag, values):  # noqa: PLR0913 -- one argument a byte
    """Eight bytes each."""
    for index in range(values.size):
        low = np.uint64(b0[index]) | np.uint64(b1[index]) << np.uint64(8)
        low |= np.uint64(b2[index]) << np.uint64(16) | np.uint64(b3[index]) << np.uint64(24)
        high = np.uint64(b4[index]) | np.uint64(b5[index]) << np.uint64(8)
        high |= np.uint64(b6[index]) << np.uint64(16) | np.uint64(b7[index]) << np.uint64(24)
        values[index] = low | high << np.uint64(32)


JOINS: dict[int, Any] = {1: join1, 2: join2, 4: join4, 8: join8}
