"""A small committed history, and ways to make its last manifest wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dcr.model import AuditTable, CommitRecord, Encoding, from_json
from dcr.testing.history import History, Tensors, random_tensors, small_catalogue
from dcr.transport.memory import MemoryStore
from dcr.transport.replay import replay


def changed(tensors: Tensors, rng: np.random.Generator, rate: float) -> Tensors:
    """Flip random bits of about ``rate`` of the elements."""
    result = {}
    for name, bits in tensors.items():
        noise = rng.integers(0, 256, bits.nbytes, np.uint8).view(bits.dtype)
        result[name] = np.where(rng.random(bits.size) < rate, bits ^ noise, bits).astype(bits.dtype)
    return result


def same(left: dict[str, NDArray[Any]], right: Tensors) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and np.array_equal(left[name], right[name]) for name in right
    )


def four_versions() -> History:
    """Versions 0 (anchor), 1 (xor), 2 (overwrite), 3 (xor)."""
    rng = np.random.default_rng(7)
    result = History(MemoryStore(), small_catalogue())
    tensors = random_tensors(result.catalogue, rng)
    for encoding in (Encoding.OVERWRITE, Encoding.XOR, Encoding.OVERWRITE, Encoding.XOR):
        result.commit(tensors, encoding=encoding)
        tensors = changed(tensors, rng, 0.5)
    return result


def rebuild(history: History, record: CommitRecord | None = None) -> dict[str, NDArray[Any]]:
    return replay(history.archive, record or history.records[-1], history.catalogue)


def audit_of(history: History, version: int) -> AuditTable:
    return from_json(AuditTable, history.archive.get_object("audit", history.records[version].audit))


def amended(history: History, **fields: object) -> CommitRecord:
    """The last version again, with these fields of its manifest changed."""
    manifest = replace(history.manifests[-1], **fields)  # type: ignore[arg-type]
    record = history.record(manifest, audit_of(history, len(history.records) - 1))
    return replace(record, version=3, attempt=history.records[3].attempt)
