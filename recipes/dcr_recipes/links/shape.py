"""What one direction of a link does to bytes: rate, delay, and connections that are lost."""

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dcr_recipes.links.bucket import TokenBucket

MBIT = 125_000
"""Bytes in a megabit."""


@dataclass(slots=True)
class Shape:
    """One direction, shared by all its connections. ``delay_s`` is added to the way of every byte.

    ``loss`` is the chance that a piece of up to 64 KiB is lost, and its connection with it: TCP would send
    it again, a proxy above TCP can only hang up, which is the harder test. ``bucket`` without a rate: no
    limit. The same ``seed`` loses the same pieces of a single connection.
    """

    bucket: TokenBucket = field(default_factory=TokenBucket)
    delay_s: float = 0.0
    loss: float = 0.0
    seed: int = 0
    clock: Callable[[], float] = time.monotonic
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _random: random.Random | None = field(default=None, repr=False)

    def loses(self) -> bool:
        """Whether the next piece is lost."""
        if not self.loss:
            return False
        with self._lock:
            if self._random is None:
                self._random = random.Random(self.seed)
            return self._random.random() < self.loss
