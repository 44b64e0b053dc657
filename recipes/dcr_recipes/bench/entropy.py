"""What a coding of order 0 needs at least (paper section 8.2). Shapes: E entries."""

import numpy as np

from dcr_recipes.bench.data import Words


def zigzag(differences: Words) -> Words:
    """Differences modulo 2^16 with small ones of either sign first.

    >>> zigzag(np.array([0, 1, 0xFFFF, 2], np.uint16)).tolist()
    [0, 2, 1, 4]
    """
    signed = differences.view(np.int16)
    return ((signed << 1) ^ (signed >> 15)).view(np.uint16)


def word_entropy_bytes(words: Words) -> float:
    """E times the entropy of the words' own frequencies, in bytes.

    >>> word_entropy_bytes(np.array([0, 1, 2, 3] * 4, np.uint16))
    4.0
    """
    if not words.size:
        return 0.0
    counts = np.bincount(words)
    counts = counts[counts > 0]
    return float((counts * np.log2(words.size / counts)).sum()) / 8
