"""Changes within a strip of a matrix's columns, which row-parallel shards are. Shapes: E entries, S sampled.

Numbers count the strip's elements row by row. With base, width and period, number n is element
``base + n // width * period + n % width``; the base lies in the strip's first column.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dcr.codec.engines import Indices
from dcr.errors import PayloadError

_WIDEST = 0.75
"""Share of all columns up to which a strip is worth two numbers; a whole matrix has all of them."""


@dataclass(frozen=True, slots=True)
class Strip:
    """``width`` elements of every ``period``, from element ``base`` on."""

    base: int
    width: int
    period: int


def find_strip(locations: Indices, columns: int, samples: Sequence[Indices]) -> Strip | None:
    """The strip that holds all ``locations`` [E > 0] of a matrix with ``columns``; None if it is no narrower.

    ``samples`` [S each] are slices of them, looked at first.
    """
    for part in samples:
        first, last = _outermost(part, columns)
        if last - first >= _WIDEST * columns:
            return None
    first, last = _outermost(locations, columns)
    width = last - first + 1
    if width > _WIDEST * columns:
        return None
    return Strip(int(locations[0]) // columns * columns + first, width, columns)


def numbers_in(strip: Strip, locations: Indices) -> Indices:
    """Number of each of ``locations`` [E], all of them in the strip, int64 [E] and as increasing."""
    relative = locations - strip.base
    rows = relative // strip.period
    rows *= strip.period - strip.width  # elements of the rows before that are outside
    relative -= rows
    return relative


def locations_of(strip: Strip, numbers: Indices) -> Indices:
    """Inverse of ``numbers_in``, in the memory of ``numbers`` [E], which lie below ``room_in``."""
    rows = numbers // strip.width
    rows *= strip.period - strip.width
    rows += strip.base
    numbers += rows
    return numbers


def room_in(strip: Strip, num_elements: int) -> int:
    """How many elements of the strip a tensor of ``num_elements`` has.

    Raises:
        PayloadError: it is no strip of the tensor.
    """
    if not 0 < strip.width < strip.period <= num_elements:
        raise PayloadError(
            f"a strip of {strip.width} elements every {strip.period} is none of a tensor of {num_elements}"
        )
    rows, rest = divmod(num_elements - strip.base, strip.period)
    return rows * strip.width + min(rest, strip.width)


def _outermost(locations: Indices, columns: int) -> tuple[int, int]:
    """First and last column that hold any of ``locations`` [E > 0]."""
    inside = locations - locations // columns * columns  # numpy divides by a number much faster than it mods
    return int(inside.min()), int(inside.max())
