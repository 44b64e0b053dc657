"""Value encodings on the paper's microbenchmark (section 8.2, Table 2): changed words only, no locations.

BF16 standard normals (seed 42), FP32 normal noise (seed 44) scaled by a, added in FP32, rounded to BF16.
"""

from typing import TYPE_CHECKING

import numpy as np

from dcr.model import Encoding
from dcr_recipes.bench.data import Changes
from dcr_recipes.bench.entropy import word_entropy_bytes, zigzag
from dcr_recipes.bench.payloads import PLANES, PUBLISHED, encode, item_of, run_of, sizes_of
from dcr_recipes.bench.report import Column, Report, Row, Steps, grouped, places

if TYPE_CHECKING:
    import torch

NOISES = (1e-4, 1e-3, 1e-2)
NUM_ELEMENTS = 20_000_000
QUICK_ELEMENTS = 200_000
_SEEDS = (42, 44)

_COLUMNS = (
    Column("noise", "a", lambda value: f"{value:g}"),
    Column("num_changed", "changed words", grouped),
    Column("overwrite_bytes", "overwrite B", grouped),
    Column("xor_bytes", "XOR B", grouped),
    Column("overwrite_to_xor", "ratio", places(3)),
    Column("best_bytes", "ours B", grouped),
    Column("best_to_xor", "ours/XOR", places(3)),
    Column("entropy_bytes", "entropy B", grouped),
    Column("best_to_entropy", "ours/entropy", places(3)),
)


def run(*, quick: bool) -> Report:
    """Bytes of each coding at each noise."""
    num_elements = QUICK_ELEMENTS if quick else NUM_ELEMENTS
    steps = Steps(1 + len(NOISES))
    steps(f"{num_elements:,} normals")
    base, noise = _inputs(num_elements)
    rows = []
    for amplitude in NOISES:
        steps(f"a = {amplitude:g}")
        rows.append({"noise": amplitude, **_row(_changes(base, noise, amplitude))})
    steps.end()
    return Report(
        bench="values",
        title="Bytes of changed BF16 words (paper Table 2)",
        columns=_COLUMNS,
        rows=rows,
        setup={"num_elements": num_elements, "seeds": _SEEDS},
        notes=[
            "overwrite and XOR: the published coding (zstd-1); ours: delta16 under codec=planes",
            "ceiling: entropy of order 0 of the differences",
            "the paper's ratios are 2.21, 2.18 and 1.72",
        ],
    )


def _inputs(num_elements: int) -> "tuple[torch.Tensor, torch.Tensor]":
    import torch

    seeded = [torch.Generator().manual_seed(seed) for seed in _SEEDS]
    base = torch.randn(num_elements, dtype=torch.bfloat16, generator=seeded[0])
    return base, torch.randn(num_elements, generator=seeded[1])


def _changes(base: "torch.Tensor", noise: "torch.Tensor", amplitude: float) -> Changes:
    import torch

    candidate = (base.float() + noise * amplitude).to(torch.bfloat16)
    old, new = (tensor.view(torch.int16).numpy().view(np.uint16) for tensor in (base, candidate))
    changed = old != new
    return run_of(old[changed], new[changed])


def _row(changes: Changes) -> Row:
    sizes = {
        "overwrite_bytes": _value_bytes(changes, Encoding.OVERWRITE),
        "xor_bytes": _value_bytes(changes, Encoding.XOR),
        "best_bytes": _value_bytes(changes, Encoding.DELTA16),
        "entropy_bytes": round(word_entropy_bytes(zigzag(changes.new - changes.old))),
    }
    return {
        "num_changed": changes.new.size,
        **sizes,
        "overwrite_to_xor": sizes["overwrite_bytes"] / sizes["xor_bytes"],
        "best_to_xor": sizes["best_bytes"] / sizes["xor_bytes"],
        "best_to_entropy": sizes["best_bytes"] / sizes["entropy_bytes"],
    }


def _value_bytes(changes: Changes, encoding: Encoding) -> int:
    codec = PLANES if encoding is Encoding.DELTA16 else PUBLISHED
    item = item_of("values", changes.new.size, changes, encoding)
    return sizes_of(encode([item], codec)).value_bytes
