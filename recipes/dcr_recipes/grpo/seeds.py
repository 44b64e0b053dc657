"""Seeds that name what they are for, so that a retried or moved request draws the same numbers."""

import hashlib

_SEED_BYTES = 8


def derived_seed(run_seed: int, *path: int | str) -> int:
    """BLAKE2b-64 of the run's seed and a path of names and indices, as an unsigned integer."""
    text = "/".join(str(part) for part in (run_seed, *path))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_SEED_BYTES).digest(), "little")


def response_seed(run_seed: int, step: int, prompt: int, response: int) -> int:
    """Seed of one response: the ``response``-th to the ``prompt``-th prompt of ``step``."""
    return derived_seed(run_seed, "response", step, prompt, response)
