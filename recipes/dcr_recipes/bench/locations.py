"""Location encodings: bits a change against H(s)/s (paper Appendix D, DESIGN section 8)."""

import numpy as np

from dcr.codec.inspect import location_bound_bits
from dcr.model import Encoding
from dcr_recipes.bench.data import Changes, Pattern, positions
from dcr_recipes.bench.payloads import PLANES, PUBLISHED, encode, item_of, sizes_of
from dcr_recipes.bench.report import Column, Report, Row, Steps, grouped, percent, places

RATES = (0.001, 0.005, 0.01, 0.03, 0.05)
PATTERNS: tuple[Pattern, ...] = ("uniform", "clustered")
NUM_ELEMENTS = 32 << 20
QUICK_ELEMENTS = 1 << 20
_SEED = 0

_COLUMNS = (
    Column("pattern", "pattern"),
    Column("rate", "changed", percent(1)),
    Column("num_changed", "changes", grouped),
    Column("bits_per_change", "ours bits", places(3)),
    Column("bound_bits", "H(s)/s bits", places(3)),
    Column("to_bound", "ours/bound", places(3)),
    Column("published_bits_per_change", "published bits", places(3)),
    Column("kind", "coded as"),
)


def run(*, quick: bool) -> Report:
    """Bits a change of each pattern at each rate."""
    num_elements = QUICK_ELEMENTS if quick else NUM_ELEMENTS
    steps = Steps(len(PATTERNS) * len(RATES))
    rows = []
    for pattern in PATTERNS:
        for rate in RATES:
            steps(f"{pattern}, {100 * rate:g}%")
            rows.append({"rate": rate, "pattern": pattern, **_row(num_elements, rate, pattern)})
    steps.end()
    return Report(
        bench="locations",
        title="Bits a changed location",
        columns=_COLUMNS,
        rows=rows,
        setup={"num_elements": num_elements, "seed": _SEED},
        notes=[
            "ceiling: H(s)/s at the measured rate s, if every set of positions is as likely",
            "clustered: 64-wide bursts, half of each changed, so that less than the ceiling is enough",
        ],
    )


def _row(num_elements: int, rate: float, pattern: Pattern) -> Row:
    rng = np.random.default_rng((_SEED, round(rate * 1e4)))
    where = positions(rng, num_elements, rate, pattern)
    ours, kind = _bits(where, num_elements, best=True)
    published, _ = _bits(where, num_elements, best=False)
    bound = location_bound_bits(where.size, num_elements) / where.size
    return {
        "num_changed": where.size,
        "bits_per_change": ours,
        "bound_bits": bound,
        "to_bound": ours / bound,
        "published_bits_per_change": published,
        "kind": kind,
    }


def _bits(
    where: np.ndarray[tuple[int], np.dtype[np.int64]], num_elements: int, *, best: bool
) -> tuple[float, str]:
    """Bits a change, and how they were coded; values are all one, which costs next to nothing."""
    from dcr.codec.inspect import inspect_payload

    ones = np.ones(where.size, np.uint16)
    item = item_of(
        "locations", num_elements, Changes(where, ones * 0, ones), Encoding.DELTA16 if best else Encoding.XOR
    )
    data = encode([item], PLANES if best else PUBLISHED)
    return 8 * sizes_of(data).location_bytes / where.size, inspect_payload(data).items[0].location_kind
