"""Both codecs on the same changes: bytes, and CPU seconds of encoding and decoding (DESIGN section 8)."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from dcr.codec import Item, decode_payload
from dcr.codec.inspect import location_bound_bits
from dcr.config import CodecConfig
from dcr.model import Encoding, TensorSpec
from dcr_recipes.bench.construct_model import specs_of, total_elements
from dcr_recipes.bench.data import Changes, change_of, named_change
from dcr_recipes.bench.entropy import word_entropy_bytes, zigzag
from dcr_recipes.bench.payloads import PLANES, PUBLISHED, encode, item_of, sizes_of
from dcr_recipes.bench.report import Column, Report, Row, Steps, grouped, percent, places
from dcr_recipes.bench.timing import Work, interleaved, thread_clock

RATES = (0.01, 0.03, 0.05)
MIB = 384
QUICK_MIB = 2
ROUNDS = 5
_SEED = 11
_MODES: dict[str, tuple[CodecConfig, Encoding]] = {
    "planes": (PLANES, Encoding.DELTA16),
    "published": (PUBLISHED, Encoding.XOR),
    "overwrite": (PUBLISHED, Encoding.OVERWRITE),
}

_COLUMNS = (
    Column("change", "changes"),
    Column("rate", "changed", percent(2)),
    Column("mode", "codec"),
    Column("payload_bytes", "payload B", grouped),
    Column("payload_share", "of checkpoint", percent(3)),
    Column("bits_per_change", "bits/change", places(2)),
    Column("bound_bits", "entropy", places(2)),
    Column("location_bits", "locations", places(2)),
    Column("value_bits", "values", places(2)),
    Column("other_bytes", "other B", grouped),
    Column("encode_cpu_s_per_gb", "encode s/GB", places(3)),
    Column("decode_cpu_s_per_gb", "decode s/GB", places(3)),
)


def run(*, quick: bool, mib: int | None = None) -> Report:
    """Bytes and CPU seconds of each codec at each rate."""
    specs = specs_of(mib or (QUICK_MIB if quick else MIB))
    steps = Steps(2 * len(RATES))
    rows: list[Row] = []
    for rate in RATES:
        steps(f"changes at {100 * rate:g}%")
        kind, change = named_change(rate)
        found = [change_of(change, (_SEED, n), spec.num_elements)[1] for n, spec in enumerate(specs)]
        steps(f"coding at {100 * rate:g}%")
        rows += [{"change": kind, **row} for row in _rows(specs, found, rounds=1 if quick else ROUNDS)]
    steps.end()
    return Report(
        bench="codec",
        title="Payloads of the same changes",
        columns=_COLUMNS,
        rows=rows,
        setup={
            "checkpoint_bytes": 2 * total_elements(specs),
            "num_tensors": len(specs),
            "rounds": 1 if quick else ROUNDS,
        },
        notes=[
            "ceiling: entropy of order 0, a tensor at a time: H(s)/s of its rate and that of its differences",
            "s/GB: CPU s of one thread per GB of checkpoint; bits/change counts every byte of the payload",
        ],
    )


def _rows(specs: Sequence[TensorSpec], changes: Sequence[Changes], rounds: int) -> list[Row]:
    items = {mode: _items(specs, changes, encoding) for mode, (_, encoding) in _MODES.items()}
    data = {mode: encode(items[mode], codec) for mode, (codec, _) in _MODES.items()}
    works: dict[str, Work] = {}
    for mode, (codec, _) in _MODES.items():
        works[f"encode {mode}"] = partial(encode, items[mode], codec)
        works[f"decode {mode}"] = partial(decode_payload, data[mode])
    costs = interleaved(works, rounds=rounds, clock=thread_clock)
    num_elements = total_elements(specs)
    num_changed = sum(change.locations.size for change in changes)
    shared: Row = {
        "rate": num_changed / num_elements,
        "num_changed": num_changed,
        "bound_bits": _bound_bits(specs, changes) / num_changed,
        "checkpoint_bytes": 2 * num_elements,
    }
    gigabytes = 2 * num_elements / 1e9
    return [
        {
            **shared,
            "mode": mode,
            **_bytes(data[mode], num_changed, num_elements),
            "encode_cpu_s_per_gb": costs[f"encode {mode}"].cpu_s / gigabytes,
            "decode_cpu_s_per_gb": costs[f"decode {mode}"].cpu_s / gigabytes,
        }
        for mode in _MODES
    ]


def _items(specs: Sequence[TensorSpec], changes: Sequence[Changes], encoding: Encoding) -> list[Item]:
    return [
        item_of(spec.name, spec.num_elements, change, encoding)
        for spec, change in zip(specs, changes, strict=True)
    ]


def _bytes(data: bytes, num_changed: int, num_elements: int) -> Row:
    sizes = sizes_of(data)
    return {
        "payload_bytes": len(data),
        "payload_share": len(data) / (2 * num_elements),
        "bits_per_change": 8 * len(data) / num_changed,
        "location_bits": 8 * sizes.location_bytes / num_changed,
        "value_bits": 8 * sizes.value_bytes / num_changed,
        "other_bytes": sizes.other_bytes,
    }


def _bound_bits(specs: Sequence[TensorSpec], changes: Sequence[Changes]) -> float:
    locations = sum(
        location_bound_bits(change.locations.size, spec.num_elements)
        for spec, change in zip(specs, changes, strict=True)
    )
    values = sum(word_entropy_bytes(zigzag(change.new - change.old)) for change in changes)
    return float(np.float64(locations) + 8 * values)
