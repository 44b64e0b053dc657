"""What an item's values do to the bits that are held, and which values lead from old to new bits (B3).

Shapes: E entries; ``old``, ``new``, ``held`` and ``values`` are stored bits [E] of one unsigned type.
"""

from dcr.errors import ConfigError
from dcr.model import Bits, Encoding


def differences(encoding: Encoding, old: Bits, new: Bits) -> Bits:
    """Values [E] that turn ``old`` into ``new``: masks, differences modulo 2^16, or ``new`` itself.

    Raises:
        ConfigError: DELTA16 of elements that are not 2 bytes wide.
    """
    if encoding is Encoding.OVERWRITE:
        return new
    if encoding is Encoding.XOR:
        return old ^ new
    _require_words(new)
    return new - old


def combined(encoding: Encoding, held: Bits, values: Bits) -> Bits:
    """Bits [E] after ``values`` act on ``held``.

    Raises:
        ConfigError: DELTA16 of elements that are not 2 bytes wide.
    """
    if encoding is Encoding.OVERWRITE:
        return values
    if encoding is Encoding.XOR:
        return held ^ values
    _require_words(held)
    return held + values


def _require_words(bits: Bits) -> None:
    if bits.dtype.itemsize != 2:
        raise ConfigError(f"delta16 is for elements of 2 bytes, not {bits.dtype}; use xor or overwrite")
