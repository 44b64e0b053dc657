"""Encode recorded weight changes of a training run anew and compare: planes, published, entropy bound.

    python benchmarks/real_deltas.py MODEL.safetensors DELTA.zst [DELTA.zst ...] [--state HASH]

MODEL is the BF16 checkpoint that the first delta changes; deltas are applied one after another. A delta
is one zstd frame: length of the header u32 (little-endian), the header as JSON, [[tensor, integer type of
its gaps, number of changes], ...], then the gaps of all tensors, then their XOR masks, u16. A gap is the
number of elements skipped since the previous change. ``--state`` is the expected first 16 hexadecimal
digits of SHA-256 over the names and bits of all tensors of MODEL in the order of their names.

The bound is of order 0, a tensor at a time: N * H(E / N) bits for E locations among N elements, and the
entropy of the bit-pattern differences. Bytes are those of whole payloads with their head, item table and
audit digests.
"""

import argparse
import hashlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zstandard
from numpy.typing import NDArray

from dcr.audit import digest_at
from dcr.codec import Item, combining, decode_payload, encode_payload
from dcr.codec.inspect import location_bound_bits, value_bound_bits
from dcr.config import CodecConfig
from dcr.model import AttemptId, Encoding, stored_bits
from dcr.transport.values import differences

AUDIT_KEY = "00" * 16
Words = NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Change:
    """Changed elements of one tensor [E]."""

    name: str
    num_elements: int
    locations: NDArray[np.int64]
    old: Words
    new: Words


def main() -> int:
    """Print one line a delta and a total; exit code 1 if MODEL is not the expected one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", type=Path, help="safetensors file in BF16")
    parser.add_argument("deltas", type=Path, nargs="+", help="recorded deltas, in order")
    parser.add_argument("--state", help="expected hash of the model's tensors")
    args = parser.parse_args()
    tensors = load(args.model)
    if args.state and state_hash(tensors) != args.state:
        print(f"error: the state of {args.model} is {state_hash(tensors)}, not {args.state}", file=sys.stderr)
        return 1
    print(f"state before {state_hash(tensors)}")
    rows = [report(path.name, apply(path, tensors)) for path in args.deltas]
    changes, planes, published, bound = zip(*rows, strict=True)
    print_row("all", sum(changes), sum(planes), sum(published), sum(bound))
    print(f"state after  {state_hash(tensors)}")
    return 0


def load(path: Path) -> dict[str, Words]:
    """Bits of every tensor, flat and writable."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return {name: stored_bits(file.get_tensor(name)).copy() for name in file.keys()}  # noqa: SIM118 -- no dict


def state_hash(tensors: dict[str, Words]) -> str:
    """First 16 hexadecimal digits over names and bits."""
    state = hashlib.sha256()
    for name in sorted(tensors):
        state.update(name.encode())
        state.update(tensors[name].tobytes())
    return state.hexdigest()[:16]


def apply(path: Path, tensors: dict[str, Words]) -> list[Change]:
    """Apply one delta to ``tensors``; returns what it changed."""
    data = zstandard.ZstdDecompressor().decompress(path.read_bytes())
    at = 4 + int.from_bytes(data[:4], "little")
    header = json.loads(data[4:at])
    gaps = []
    for _, kind, count in header:
        gaps.append(np.frombuffer(data, kind, count, at))
        at += gaps[-1].nbytes
    changes = []
    for (name, _, count), skipped in zip(header, gaps, strict=True):
        where = np.cumsum(skipped.astype(np.int64) + 1) - 1
        old = tensors[name][where]
        tensors[name][where] ^= np.frombuffer(data, "<u2", count, at)
        at += 2 * count
        changes.append(Change(name, tensors[name].size, where, old, tensors[name][where]))
    return changes


def report(name: str, changes: list[Change]) -> tuple[int, int, int, float]:
    """Changes, bytes in both codings and bound in bytes, after checking that both decode exactly."""
    sizes = []
    seconds = []
    for codec in ("planes", "published"):
        items = items_of(changes, combining(codec, "bfloat16"))
        start = time.process_time()
        data = encode(items, codec)
        middle = time.process_time()
        decoded = decode_payload(data)
        seconds.append((middle - start, time.process_time() - middle))
        if list(decoded.items) != items:
            raise AssertionError(f"{codec} does not decode to what was encoded")
        sizes.append(len(data))
    row = (sum(len(change.locations) for change in changes), sizes[0], sizes[1], bound_bytes(changes))
    print_row(name, *row)
    print(f"  encode and decode, CPU s: planes {seconds[0][0]:.3f} {seconds[0][1]:.3f},"
          f" published {seconds[1][0]:.3f} {seconds[1][1]:.3f}")  # fmt: skip
    return row


def items_of(changes: list[Change], encoding: Encoding) -> list[Item]:
    """One item a tensor, with its audit digest."""
    return [
        Item(
            change.name, (change.num_elements,), "bfloat16", encoding, change.locations,
            differences(encoding, change.old, change.new),
            digest_at(AUDIT_KEY, change.name, change.locations, change.new),
        )
        for change in changes
    ]  # fmt: skip


def encode(items: list[Item], codec: str) -> bytes:
    """One payload."""
    return encode_payload(
        items, attempt=AttemptId(number=1, version=1), owner=0, sequence=0, codec=CodecConfig(name=codec)
    )


def bound_bytes(changes: list[Change]) -> float:
    """Entropy of order 0, a tensor at a time."""
    bits = sum(
        location_bound_bits(len(change.locations), change.num_elements)
        + value_bound_bits(differences(Encoding.DELTA16, change.old, change.new))
        for change in changes
    )
    return bits / 8


def print_row(name: str, num_changes: int, planes: int, published: int, bound: float) -> None:
    """One line of the table."""
    print(
        f"{name}: {num_changes} changes; planes {planes} B = {8 * planes / num_changes:.2f} bits a change,"
        f" published {published} B = {8 * published / num_changes:.2f}, bound {bound:.0f} B;"
        f" planes {100 * (1 - planes / published):.1f}% below published, {planes / bound:.4f}x the bound"
    )


if __name__ == "__main__":
    sys.exit(main())
