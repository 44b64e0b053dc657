"""Pinned audit digests: records of earlier runs stay provable only while these hold (DESIGN B6)."""

import hashlib

import numpy as np
import pytest

from dcr.audit import digest_at, digest_tensor, table_digest, term_key
from dcr.model import AuditDigest

KEY = "000102030405060708090a0b0c0d0e0f"
NAME = "model.embed_tokens.weight"


def key_from_the_documentation(key: str, name: str, index: int, lane: int) -> int:
    """docs/audit.md, followed without the library."""
    digest = hashlib.blake2b(
        name.encode("utf-8"), digest_size=16, key=bytes.fromhex(key), person=b"dcr-audit-v1"
    ).digest()
    seed0, seed1 = (int.from_bytes(digest[i : i + 8], "little") for i in (0, 8))
    z = (seed0 + (2 * index + lane) * 0x9E3779B97F4A7C15) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z ^= seed1
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    z ^= z >> 31
    return 1 + (z >> 3) % (2**61 - 2)


@pytest.mark.parametrize(
    ("name", "index", "lane", "want"),
    [
        (NAME, 0, 0, 1848197600270564289),
        (NAME, 0, 1, 1100444036587862519),
        (NAME, 1, 0, 1115069669587082146),
        (NAME, 2**40, 0, 1753982099943057731),
        ("gewicht.ß", 5, 0, 1449056189016562022),
    ],
)
def test_term_keys(name: str, index: int, lane: int, want: int) -> None:
    assert term_key(KEY, name, index, lane) == want
    assert key_from_the_documentation(KEY, name, index, lane) == want


@pytest.mark.parametrize(
    ("width", "want"),
    [
        (1, 176092561787967932),
        (2, 2108500786141897571),
        (4, 1064667223954398566),
        (8, 1044951519771978905),
    ],
)
@pytest.mark.parametrize("force_numpy", [False, True])
def test_whole_tensors(width: int, want: int, force_numpy: bool) -> None:
    bits = (np.arange(6, dtype=np.uint64) * 0x0123456789ABCDEF).astype(f"<u{width}")
    assert digest_tensor(KEY, NAME, bits, force_numpy=force_numpy) == (want, 6)


def test_some_elements() -> None:
    where = np.array([7, 3, 2**33], dtype=np.int64)
    bits = np.array([0x8000, 0x7FC0, 0xFFFF], dtype="<u2")
    assert digest_at(KEY, NAME, where, bits) == (1223349104456488477, 3)


def test_table() -> None:
    table = {"a": AuditDigest(1, 1), "b": AuditDigest(2**61 - 2, 7)}
    assert table_digest(table) == "031a3fd93fa094eef493b20bcc948dbc"
