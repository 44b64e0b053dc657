"""The scan with torch operations, on the device where the candidate lies (DESIGN R2, R3).

A trainer on GPUs must not copy its whole shard to the host to find the 1% that changed. A baseline in
host memory comes chunk by chunk through two page-locked buffers, one of which is filled while the other
travels; a baseline on the device is read where it is. Indices and bits of what changed are all that comes
back. On the host the same code runs, and the buffers are ordinary memory.

Shapes: N elements. Device memory needed: about 4 chunks.
"""

from collections.abc import Iterator

import numpy as np
import torch

from dcr.model import Bits
from dcr.source.detect import Candidate, Changes, joined

CHUNK_BYTES = 1 << 25
"""Bytes of either side compared at once."""

_SIGNED = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Stand-ins of the same width: torch compares and indexes few unsigned types."""


def find(candidate: Candidate, baseline: Candidate, *, chunk_bytes: int = CHUNK_BYTES) -> Changes:
    """Changes of ``candidate`` [N] against ``baseline`` [N]; the result is on the host."""
    width = candidate.itemsize
    bits = np.dtype(f"u{width}")
    here = _flat(candidate, _SIGNED[width])
    size = max(1, chunk_bytes // width)
    parts = [Changes(np.empty(0, np.int64), np.empty(0, bits), np.empty(0, bits))]
    for start, there in _chunks(baseline, here, size):
        part = here[start : start + size]
        found = torch.ne(part, there).nonzero().squeeze(1)
        local = found.cpu().numpy() + start
        old, new = there[found].cpu().numpy(), part[found].cpu().numpy()
        parts.append(Changes(local, old.view(bits), new.view(bits)))
    return joined(parts)


def _flat(bits: Candidate, dtype: torch.dtype) -> torch.Tensor:
    """[N] in C order as ``dtype``; numpy's arrays are copied, for torch cannot hold read-only ones."""
    if isinstance(bits, np.ndarray):
        copy: Bits = np.array(bits, order="C").reshape(-1)
        return torch.from_numpy(copy.view(f"i{copy.itemsize}"))
    return bits.detach().contiguous().reshape(-1).view(dtype)


def _chunks(baseline: Candidate, like: torch.Tensor, size: int) -> Iterator[tuple[int, torch.Tensor]]:
    """Start and elements of each part of ``baseline``, on the device and of the type of ``like``.

    The next part is under way when one is given out. A buffer is filled again when its part has been
    used: whoever takes the next part has seen the result of the last one, which the device computed in
    order.
    """
    if not isinstance(baseline, np.ndarray):
        flat = _flat(baseline, like.dtype).to(like.device)
        yield from ((start, flat[start : start + size]) for start in range(0, len(flat), size))
        return
    bits = np.ascontiguousarray(baseline).reshape(-1)
    buffers = [_buffer(min(size, bits.size), like) for _ in range(2)]
    ahead: tuple[int, torch.Tensor] | None = None
    for number, start in enumerate(range(0, bits.size, size)):
        staged = _send(bits[start : start + size], buffers[number % 2], like)
        if ahead is not None:
            yield ahead
        ahead = start, staged
    if ahead is not None:
        yield ahead


def _buffer(size: int, like: torch.Tensor) -> torch.Tensor:
    return torch.empty(size, dtype=like.dtype, pin_memory=like.is_cuda)


def _send(bits: Bits, buffer: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    staged = buffer[: bits.size]
    staged.numpy()[:] = bits.view(f"i{bits.itemsize}")
    return staged.to(like.device, non_blocking=True)
