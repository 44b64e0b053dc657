"""How often the location type that is chosen on a sample is the best one, measured on whole items.

Right means within 2% of the fewest bytes among all types that can hold the item. Real changes are spread
evenly or by rows; the others here are as regular as an adversary could make them.
"""

from typing import TYPE_CHECKING

import numpy as np
import pytest
from numpy.typing import NDArray

from dcr.codec.engines import engine_of
from dcr.codec.frames import smallest_size
from dcr.codec.kinds import BLOCKS, ESCAPED, PLANES, RICE, is_blocks, is_rice
from dcr.codec.location_parts import Plan, least_low_bits, location_parts
from dcr.codec.plan import plan_locations

if TYPE_CHECKING:
    from collections.abc import Callable

ENGINE = engine_of("compiled", 0)
Locations = NDArray[np.int64]
COLUMNS = 576


def even(draw: np.random.Generator, size: int) -> Locations:
    return np.flatnonzero(draw.random(size) < draw.choice([0.003, 0.01, 0.05, 0.3, 0.7]))


def rows(draw: np.random.Generator, size: int) -> Locations:
    """Some rows change more than others."""
    rate = 0.01 * np.exp(draw.normal(0, draw.choice([0.5, 1, 2]), size // COLUMNS))
    return np.flatnonzero(draw.random((len(rate), COLUMNS)) < np.minimum(rate, 0.95)[:, None])


def few_rows(draw: np.random.Generator, size: int) -> Locations:
    """Embeddings of the tokens that occurred."""
    hot = draw.random(size // COLUMNS) < 0.05
    return np.flatnonzero((draw.random((len(hot), COLUMNS)) < draw.choice([0.02, 0.3, 1.0])) & hot[:, None])


def few_columns(draw: np.random.Generator, size: int) -> Locations:
    hot = draw.random(COLUMNS) < draw.choice([0.01, 0.05])
    return np.flatnonzero((draw.random((size // COLUMNS, COLUMNS)) < draw.choice([0.2, 0.8, 1.0])) & hot)


def bursts(draw: np.random.Generator, size: int) -> Locations:
    width = int(draw.choice([16, 64, 200]))
    starts = np.unique(draw.integers(0, size // width, size // (40 * width)))
    found: Locations = (starts[:, None] * width + np.arange(width))[
        draw.random((len(starts), width)) < draw.choice([0.2, 0.5, 0.9])
    ]
    return found


def few_gaps(draw: np.random.Generator, size: int) -> Locations:
    return np.cumsum(draw.choice([3, 100, 300], size // 150))


def heavy_tails(draw: np.random.Generator, size: int) -> Locations:
    return np.cumsum((draw.pareto(draw.choice([0.7, 1.5]), size // 100) * 10).astype(np.int64) + 1)


def fewest_bytes(locations: Locations) -> int:
    gaps: Locations = np.diff(locations) - 1
    steps: Locations = np.diff(locations // 64)
    blocks = steps[steps > 0] - 1
    kinds = [RICE + k for k in _around(gaps)]
    kinds += [BLOCKS + k for k in _around(blocks)] if len(blocks) else []
    kinds += [kind for kind, width in PLANES.items() if gaps.max() < 1 << (8 * width)]
    kinds += [ESCAPED] if (gaps // 255).sum() < 3 * len(gaps) else []
    return min(num_bytes(locations, Plan(kind, 0)) for kind in kinds)


def _around(gaps: Locations) -> range:
    least = least_low_bits(int(gaps.sum()), len(gaps))
    guess = int(np.log2(gaps.mean() + 1))
    return range(max(least, guess - 2), max(least, guess) + 2)


def num_bytes(locations: Locations, plan: Plan) -> int:
    return sum(smallest_size(raw, 1) for _, raw in location_parts(locations, plan, ENGINE)[1] if len(raw))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_choice_is_right_in_95_of_100_items(seed: int) -> None:
    draw = np.random.default_rng(seed)
    makers: list[Callable[[np.random.Generator, int], Locations]] = [
        even, rows, few_rows, few_columns, bursts, few_gaps, heavy_tails,
    ]  # fmt: skip
    items = [make(draw, size) for _ in range(3) for make in makers for size in (100_000, 400_000)]
    items = [locations for locations in items if len(locations) > 1024]
    wrong = []
    for locations in items:
        plan = plan_locations(locations, ENGINE, 1)
        if is_rice(plan.location_type) or is_blocks(plan.location_type) or plan.location_type > ESCAPED - 1:
            chosen, best = num_bytes(locations, plan), fewest_bytes(locations)
            if chosen > 1.02 * best + 8:
                wrong.append((plan, len(locations), chosen, best))
    assert len(items) >= 25
    assert len(wrong) <= 0.05 * len(items), wrong
