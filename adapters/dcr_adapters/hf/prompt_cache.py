"""Attention state of prompts that were asked before: what must not outlive a refit (paper section 7, R19).

An entry holds the result of one prefill, of a whole group, exactly as it was computed: a hit then
gives the same bits as a miss. It depends on the weights; ``clear`` is what a gate calls when they change.
Legend: G responses of a group, V vocabulary entries.
"""

import threading
from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass
from typing import TypeAlias

import torch

from dcr.errors import ConfigError

Key: TypeAlias = tuple[int, tuple[int, ...]]
"""(G, prompt tokens): another group size is another batch, and so other bits."""


@dataclass(frozen=True, slots=True)
class Prefilled:
    """``logits`` [G, V] of the prompt's last token, and the model's KV cache after the prompt."""

    logits: torch.Tensor
    kv: object

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return _num_bytes([self.logits, self.kv], set())


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """Lookups by outcome and clearings that dropped something, since the process started; bytes held now."""

    hits: int
    misses: int
    clears: int
    num_bytes: int


class PromptCache:
    """Least recently used prompts leave first; at most ``max_bytes`` are held. Thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty; 0 bytes hold nothing. Raises ConfigError if negative."""
        if max_bytes < 0:
            raise ConfigError(f"runtime.prompt_cache_mib: must be at least 0, got {max_bytes} bytes")
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._held: OrderedDict[Key, tuple[Prefilled, int]] = OrderedDict()
        self._num_bytes = self._hits = self._misses = self._clears = 0

    def get(self, key: Key) -> Prefilled | None:
        """A copy of the entry, for the caller to extend; None if it is not held."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._held.move_to_end(key)
        return deepcopy(found[0])

    def put(self, key: Key, entry: Prefilled) -> None:
        """Keep a copy of ``entry``, unless it alone is too large."""
        num_bytes = entry.num_bytes
        if num_bytes > self._max_bytes:
            return
        copy = deepcopy(entry)
        with self._lock:
            self._drop(key)
            self._held[key] = (copy, num_bytes)
            self._num_bytes += num_bytes
            while self._num_bytes > self._max_bytes:
                self._drop(next(iter(self._held)))

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        with self._lock:
            self._clears += bool(self._held)
            self._held.clear()
            self._num_bytes = 0

    def figures(self) -> CacheFigures:
        """Counts for status and metrics."""
        with self._lock:
            return CacheFigures(self._hits, self._misses, self._clears, self._num_bytes)

    def _drop(self, key: Key) -> None:
        held = self._held.pop(key, None)
        self._num_bytes -= 0 if held is None else held[1]


def _num_bytes(value: object, seen: set[int]) -> int:
    """Bytes of every tensor within lists, tuples, dicts and the attributes of objects, each once."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, dict):
        return sum(_num_bytes(part, seen) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(_num_bytes(part, seen) for part in value)
    return _num_bytes(vars(value), seen) if hasattr(value, "__dict__") and not isinstance(value, type) else 0
