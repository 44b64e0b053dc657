"""Items that take every location type and layout of the coding ``planes``. Shapes: E entries."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.codec import Item
from dcr.model import Encoding, bits_dtype

HUGE = 2**63 - 1


def item(name: str, where: Sequence[int] | NDArray[np.int64], *, size: int = HUGE, **changes: Any) -> Item:
    """Small signed differences in BF16, or what ``changes`` say (dtype, encoding, values, shape)."""
    locations = np.asarray(where, np.int64)
    dtype = changes.pop("dtype", "bfloat16")
    count = np.arange(len(locations))
    signed = np.where(count % 3, 1, -1) * (1 + count % 2 + 500 * (count % 11 == 0))
    values = signed.astype(np.int64).astype(bits_dtype(dtype))
    shape = changes.pop("shape", (size,))
    fields = {"encoding": Encoding.DELTA16 if values.itemsize == 2 else Encoding.XOR, "values": values}
    return Item(name, shape, dtype, positions=locations, **(fields | changes))


def spread(count: int, rate: float, seed: int = 0) -> NDArray[np.int64]:
    """``count`` locations at geometric distances of 1 / ``rate`` on average."""
    return np.cumsum(np.random.default_rng(seed).geometric(rate, count)).astype(np.int64) - 1


def bursts(count: int, apart: int, seed: int = 0) -> NDArray[np.int64]:
    """About half of the elements in ``count`` groups of 64."""
    draw = np.random.default_rng(seed)
    starts = 64 * np.cumsum(draw.geometric(64 / apart, count)).astype(np.int64)
    inside = draw.random((count, 64)) < 0.5
    found: NDArray[np.int64] = (starts[:, None] + np.arange(64))[inside]
    return found


def repeated(gaps: Sequence[int], count: int) -> NDArray[np.int64]:
    """``count`` locations whose gaps are drawn from a few: their bytes repeat, their bits do not."""
    drawn = np.random.default_rng(1).choice(np.array(gaps, np.int64), count)
    return np.cumsum(drawn + 1) - 1


def strided(start: int, block: int, period: int, count: int) -> NDArray[np.int64]:
    """``count`` blocks."""
    found: NDArray[np.int64] = (start + period * np.arange(count)[:, None] + np.arange(block)).reshape(-1)
    return found


def in_strip(count: int, first: int, width: int, columns: int) -> NDArray[np.int64]:
    """``count`` elements evenly spread over ``width`` columns from the ``first`` on."""
    rows, inside = np.divmod(spread(count, 0.03), width)
    found: NDArray[np.int64] = rows * columns + first + inside
    return found


def every_kind() -> dict[str, Item]:
    """Location type (without its number of low bits) -> an item that takes it."""
    return {
        "run": item("run", range(7, 107)),
        "stride": item("stride", strided(3, 5, 9, 20)),
        "escape8": item("escape8", repeated([1, 200, 300], 5000)),
        "planes16": item("planes16", repeated([7, 1000, 50_000], 5000)),
        "planes32": item("planes32", repeated([*[7] * 150, *[8] * 49, 2**31], 5000)),
        "rice": item("rice", spread(201, 0.01)),
        "blocks": item("blocks", bursts(10, 6400)),
        "strips": item("strips", in_strip(2000, 192, 192, 768), shape=(1 << 50, 768)),
    }


def every_layout() -> list[Item]:
    """Words (a run that repeats), planes of each width and encoding, and pairs."""
    repeats = np.resize(np.random.default_rng(2).integers(0, 2**16, 300).astype("<u2"), 4096)
    rows = [item("words", range(4096), size=4096, encoding=Encoding.OVERWRITE, values=repeats)]
    rows += [
        item(f"{dtype} {way}", spread(33, 0.3, 3), dtype=dtype, encoding=way)
        for dtype in ("float8_e4m3fn", "float16", "float32", "int64")
        for way in (Encoding.XOR, Encoding.OVERWRITE)
    ]
    broad = np.random.default_rng(4).integers(0, 2**16, 2100).astype("<u2")
    return [*rows, item("broad", range(2100), encoding=Encoding.DELTA16, values=broad)]
