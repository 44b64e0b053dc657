"""The documented key function k(name, index, lane) of the audit digest (DESIGN B6, docs/audit.md).

All arithmetic is on unsigned integers of 64 bits, modulo 2^64, unless said otherwise:

    seed0 | seed1 = BLAKE2b-128(key = 16 key bytes, person = "dcr-audit-v1", data = UTF-8 name)
    x = 2 * index + lane
    z = seed0 + x * 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = z ^ seed1
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    k = 1 + (z >> 3) mod (p - 1)

The two seeds are the halves of the digest, little-endian.
"""

import hashlib
import re
from functools import lru_cache

from dcr.errors import ConfigError

MODULUS = (1 << 61) - 1
"""The Mersenne prime p = 2^61 - 1."""
GAMMA = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB
PERSON = b"dcr-audit-v1"
_WORD = (1 << 64) - 1
_KEY = re.compile(r"[0-9a-f]{32}")


@lru_cache(maxsize=65536)
def seeds(key: str, name: str) -> tuple[int, int]:
    """The two 64-bit seeds of one tensor.

    Raises:
        ConfigError: the audit key is not 32 lower-case hexadecimal digits.
    """
    if not _KEY.fullmatch(key):
        raise ConfigError(f"audit_key {key!r} must be 32 lower-case hexadecimal digits")
    state = hashlib.blake2b(name.encode(), digest_size=16, key=bytes.fromhex(key), person=PERSON)
    digest = state.digest()
    return int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")


def term_key(key: str, name: str, index: int, lane: int = 0) -> int:
    """k(name, index, lane) in [1, p - 1], one at a time: the definition that the kernels must equal.

    Raises:
        ConfigError: the audit key is not 32 lower-case hexadecimal digits.
    """
    seed0, seed1 = seeds(key, name)
    z = (seed0 + (2 * index + lane) * GAMMA) & _WORD
    z = ((z ^ (z >> 30)) * MIX_1) & _WORD
    z ^= seed1
    z = ((z ^ (z >> 27)) * MIX_2) & _WORD
    z ^= z >> 31
    return 1 + (z >> 3) % (MODULUS - 1)
