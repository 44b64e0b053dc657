"""Memory of a receiver over many refits: it must not grow (DESIGN section 8).

Decoded payloads of a new transition each time, applied and checked at the level of the loader.
"""

import os
import resource
from itertools import pairwise
from pathlib import Path

from dcr.codec import decode_payload
from dcr.model import Encoding
from dcr.receiver.apply import RankApplier
from dcr_recipes.bench.apply_data import Versions, make_versions
from dcr_recipes.bench.apply_model import config_of, shape_of, specs_of
from dcr_recipes.bench.apply_ranks import learned
from dcr_recipes.bench.payloads import PLANES, PUBLISHED, encode
from dcr_recipes.bench.report import Column, Report, Row, Steps, grouped, places

RATE = 0.01
_POINTS = 10
_MIB = 1 << 20

_COLUMNS = (
    Column("num_refits", "refits", grouped),
    Column("resident_mib", "resident MiB", places(1)),
    Column("growth_mib", "since warm MiB", places(2)),
)


def run(*, num_refits: int, quick: bool) -> Report:
    """Resident set size after every tenth part of ``num_refits``; the first part warms caches up."""
    from dcr_recipes.bench.hf_rank import loader_of

    shape = shape_of("dense", quick=True)
    versions = make_versions(specs_of(shape), RATE)
    rank = learned(loader_of(config_of(shape)), versions.catalogue, "auto")
    wires = _wires(versions)
    num_refits = min(num_refits, 2 * _POINTS) if quick else num_refits
    steps, rows = Steps(_POINTS), list[Row]()
    ends = [num_refits * point // _POINTS for point in range(_POINTS + 1)]
    for start, end in pairwise(ends):
        steps(f"refits {start} to {end}")
        for number in range(start, end):
            _refit(rank, wires[number % len(wires)])
        rows.append({"num_refits": end, "resident_mib": _resident_mib()})
    steps.end()
    for row in rows:
        row["growth_mib"] = row["resident_mib"] - rows[0]["resident_mib"]
    return Report(
        bench="apply",
        title="Memory of a receiver over refits",
        columns=_COLUMNS,
        rows=rows,
        setup={"num_refits": num_refits, "rate": versions.rate, "num_tensors": len(versions.changes)},
        notes=[f"peak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.1f} MiB"],
    )


def _refit(rank: RankApplier, wire: bytes) -> None:
    rank.begin(clean=True)
    rank.apply(decode_payload(wire))
    rank.synchronize()
    rank.check()


def _wires(versions: Versions) -> list[bytes]:
    """XOR there and back, a difference, and absolute values: what they leave does not matter here."""
    encodings = (Encoding.XOR, Encoding.XOR, Encoding.DELTA16, Encoding.OVERWRITE)
    return [
        encode(
            [item for payload in versions.payloads(encoding) for item in payload.items],
            PLANES if encoding is Encoding.DELTA16 else PUBLISHED,
        )
        for encoding in encodings
    ]


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB
