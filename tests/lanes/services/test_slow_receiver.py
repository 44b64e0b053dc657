"""A receiver ten times slower than it could be: every process's memory stays within what its settings allow.

Real processes on a real bucket. What is measured is the peak of each resident set over a refit, beyond what
the process held before it: payloads, or what they decode to, held while the receiver is behind would show
and grow with the model.
"""

import logging
from pathlib import Path

import pytest

from dcr.receiver.written import MOST_BYTES
from dcr_recipes.bench.apply_model import Shape
from dcr_recipes.bench.refit_cluster import LinkOptions, cluster, new_run
from dcr_recipes.bench.refit_processes import all_of
from dcr_recipes.bench.refit_setup import Setup, Sizes

MIB = 1 << 20
RATE = 0.2
"""Below the share from which shards go whole."""
ENTRY_BYTES = 8 + 2
"""Of a changed BF16 element in memory: its location and its value."""
WORKING = 6
"""How often a decoded payload's entries are in memory while it is decoded, placed or read back."""
SLACK = 48 * MIB
"""Of an allocator, an interpreter and buffers of connections."""
SHAPE = Shape(
    vocabulary=4096, hidden=1024, ffn=3072, num_layers=20, num_heads=8, num_kv_heads=4, head_dim=128
)
"""Many tensors, each smaller than a bucket: tensors are never split."""
SIZES = Sizes(bucket_mib=8, chunk_mib=8, shape=SHAPE)


def allowed(setup: Setup, payload_bytes: float) -> dict[str, float]:
    """Bytes that each kind of process may add: see ``dcr.source.pipeline``, ``Session`` and ``Written``.

    A bucket is as large as the source bytes that it covers, and a chunk more.
    """
    codec, threads = setup.config().codec, 2
    chunk = 2 * codec.chunk_mib * MIB * RATE * ENTRY_BYTES / 2  # the last tensor may exceed it
    bucket = codec.bucket_mib * MIB * RATE * ENTRY_BYTES / 2 + chunk
    return {
        "owner": (1 + 3 * codec.queue) * bucket + (threads + 1) * chunk,
        "runtime": MOST_BYTES + (setup.ahead + 2) * payload_bytes + WORKING * bucket,
        "coordinator": 0.0,
    }


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_memory_stays_bounded_behind_a_slow_receiver(tmp_path: Path, mode: str) -> None:
    setup = Setup(tmp_path / "run", new_run(), 2, 1, mode, SIZES)
    with cluster(setup, LinkOptions(0.0), through_s3=True) as made:
        made.refit(RATE)  # trackers and weights are resident, kernels compiled
        held = made.forget_peaks()
        all_of(made.nodes, "slow_down", factor=10.0)
        found = made.refit(RATE)
        peaks = made.peaks()
        made.prove()
    most = found.num_changed * ENTRY_BYTES
    bounds = allowed(setup, 2 * found.payload_bytes / found.num_payloads)
    bounds["runtime"] += found.payload_bytes  # as it was sent: for the check, or while it is staged
    told: list[str] = []
    for name, peak in peaks.items():
        bound = bounds[name.partition("-")[0]] + SLACK
        grown = peak - held[name]
        told.append(f"{name}: {grown / MIB:.1f} MiB of {bound / MIB:.1f}, {most / MIB:.1f} if all were held")
        assert grown <= bound, told
    logging.getLogger(__name__).info("\n".join(told))
    assert bounds["runtime"] + SLACK < most, "this bound could not tell"
