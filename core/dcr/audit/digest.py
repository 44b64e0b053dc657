"""Digests of whole tensors, of parts, and through index maps (DESIGN B6, docs/audit.md).

Shape legend: E elements given, N elements of a tensor.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.audit.kernels import COMPILE_FROM, MAX_TERMS, Lanes, sum_at, sum_pair_at, sum_run, sum_segments
from dcr.audit.keys import MODULUS, seeds
from dcr.errors import ConfigError
from dcr.model import AuditDigest, AuditTable, digest_hex, to_json

Indices: TypeAlias = NDArray[np.int64]
EMPTY = AuditDigest(0, 0)
"""Digest of no elements; neutral in ``combine``."""
_MAP_CHUNK = 1 << 20


class FarIndices(Protocol):
    """What the audit needs of an index map (``dcr.indexmap.IndexMap`` has it)."""

    @property
    def shift(self) -> int | None:
        """What is added to every source index if the map is one unit-stride run, else None."""
        ...

    def to_far(self, indices: Indices) -> Indices:
        """Canonical flat index of each local one [E]; -1 where it is cropped."""
        ...


def digest_tensor(key: str, name: str, bits: Lanes, *, force_numpy: bool = False) -> AuditDigest:
    """Digest of a dense tensor from its stored bits, any shape, in canonical row-major order.

    Raises:
        ConfigError: ``bits`` are not unsigned integers or the audit key is malformed.
    """
    return _digest_run(key, name, 0, bits, force_numpy=force_numpy)


def digest_at(
    key: str, name: str, indices: Indices, bits: Lanes, *, force_numpy: bool = False
) -> AuditDigest:
    """Digest of some elements: ``bits`` [E] at canonical flat ``indices`` int64 [E], in any order.

    An index given twice counts twice.

    Raises:
        ConfigError: shapes differ, ``bits`` are not unsigned, or the audit key is malformed.
    """
    if indices.shape != bits.shape or indices.ndim != 1:
        raise ConfigError(
            f"digest of {name!r}: indices {indices.shape} and bits {bits.shape} must both be [E]"
        )
    pair = seeds(key, name)
    lanes = _lanes(name, bits)
    if bits.itemsize < 8:
        return AuditDigest(sum_at(lanes, indices, pair, 0, force_numpy=force_numpy), bits.size)
    total = sum(
        sum_at(np.ascontiguousarray(lanes[lane::2]), indices, pair, lane, force_numpy=force_numpy)
        for lane in (0, 1)
    )
    return AuditDigest(total % MODULUS, bits.size)


def digest_segments(
    key: str, names: Sequence[str], ends: Indices, listed: tuple[Indices, Lanes]
) -> list[AuditDigest]:
    """``digest_at`` of some elements of many tensors of one width, for no more than one call costs.

    ``listed`` are indices int64 [E] and bits [E], tensor after tensor; those of ``names[n]`` end at
    ``ends`` int64 [n].

    Raises:
        ConfigError: as ``digest_at``.
    """
    indices, bits = listed
    starts, stops = [0, *ends[:-1].tolist()], ends.tolist()
    if bits.itemsize == 8 or not COMPILE_FROM <= bits.size < MAX_TERMS:
        return [
            digest_at(key, name, indices[start:stop], bits[start:stop])
            for name, start, stop in zip(names, starts, stops, strict=True)
        ]
    lanes = _lanes(names[0], bits)
    totals = sum_segments(lanes, indices, ends, [seeds(key, name) for name in names])
    return [
        AuditDigest(total, stop - start) for total, start, stop in zip(totals, starts, stops, strict=True)
    ]


def digest_pair(
    key: str, name: str, indices: Indices, pair: tuple[Lanes, Lanes], *, force_numpy: bool = False
) -> tuple[AuditDigest, AuditDigest]:
    """``digest_at`` of both arrays [E] of ``pair`` at the same ``indices``, for little more than one costs.

    Raises:
        ConfigError: as ``digest_at``; or the two are of different widths.
    """
    left, right = pair
    if left.dtype != right.dtype:
        raise ConfigError(f"digests of {name!r}: {left.dtype} and {right.dtype} are not bits of one tensor")
    if left.itemsize == 8 or left.shape != indices.shape or right.shape != indices.shape:
        return (
            digest_at(key, name, indices, left, force_numpy=force_numpy),
            digest_at(key, name, indices, right, force_numpy=force_numpy),
        )
    lanes = _lanes(name, left), _lanes(name, right)
    totals = sum_pair_at(lanes, indices, seeds(key, name), 0, force_numpy=force_numpy)
    return AuditDigest(totals[0], left.size), AuditDigest(totals[1], right.size)


def digest_map(
    key: str, name: str, index_map: FarIndices, local_bits: Lanes, *, force_numpy: bool = False
) -> AuditDigest:
    """Digest of flat storage [E] seen through a map to canonical indices; cropped elements do not count.

    Raises:
        ConfigError: ``local_bits`` are not unsigned or the audit key is malformed.
    """
    flat = local_bits.reshape(-1)
    shift = index_map.shift
    if shift is not None:
        return _digest_run(key, name, shift, flat, force_numpy=force_numpy)
    parts = []
    for start in range(0, flat.size, _MAP_CHUNK):
        part = flat[start : start + _MAP_CHUNK]
        far = index_map.to_far(np.arange(start, start + part.size, dtype=np.int64))
        counted = far >= 0
        if not counted.all():
            far, part = far[counted], part[counted]
        parts.append(digest_at(key, name, far, part, force_numpy=force_numpy))
    return combine(*parts)


def combine(*digests: AuditDigest) -> AuditDigest:
    """Digest of the union of disjoint parts of one tensor; of nothing, ``EMPTY``."""
    return AuditDigest(sum(part.total for part in digests) % MODULUS, sum(part.count for part in digests))


def update(
    digest: AuditDigest, key: str, name: str, indices: Indices, old_bits: Lanes, new_bits: Lanes
) -> AuditDigest:
    """Digest after elements at ``indices`` [E] went from ``old_bits`` to ``new_bits``, in O(E).

    ``digest`` must cover those elements, and an index must not be given twice.

    Raises:
        ConfigError: as ``digest_at``.
    """
    return exchange(digest, *digest_pair(key, name, indices, (old_bits, new_bits)))


def exchange(digest: AuditDigest, old: AuditDigest, new: AuditDigest) -> AuditDigest:
    """Digest after the elements whose digest is ``old`` have become those of ``new``."""
    return AuditDigest((digest.total + new.total - old.total) % MODULUS, digest.count)


def table_digest(table: AuditTable) -> str:
    """BLAKE2b-128 of the table's canonical JSON: the audit-table digest of the commit record (P3)."""
    return digest_hex(to_json(table))


def _digest_run(key: str, name: str, first: int, bits: Lanes, *, force_numpy: bool) -> AuditDigest:
    """Digest of elements at first, first + 1, ..."""
    lanes, wide = _lanes(name, bits), bits.itemsize == 8
    total = sum_run(lanes, seeds(key, name), 2 * first, 1 if wide else 2, force_numpy=force_numpy)
    return AuditDigest(total, bits.size)


def _lanes(name: str, bits: NDArray[Any]) -> Lanes:
    """Contiguous lanes of at most 32 bits; an element of 8 bytes gives two, the low one first."""
    if bits.dtype.kind != "u":
        raise ConfigError(f"digest of {name!r}: stored bits must be unsigned integers, not {bits.dtype}")
    flat = np.ascontiguousarray(bits).reshape(-1)
    return flat.astype("<u8", copy=False).view("<u4") if flat.itemsize == 8 else flat
