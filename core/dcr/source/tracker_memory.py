"""Tracker bytes of all owned tasks in this process's own memory (DESIGN R3): nothing outlives it.

For hosts without a local disk of that size. A restarted owner rebuilds its trackers from anchor and chain.
"""

from collections.abc import Sequence

import numpy as np

from dcr.model import Bits, bits_dtype
from dcr.source.task import AffineTask
from dcr.source.tracker_file import offsets


class TrackerMemory:
    """Offers what ``TrackerFile`` offers."""

    def __init__(self, tasks: Sequence[AffineTask]) -> None:
        self._offsets, self.num_bytes = offsets(tasks)

    def is_intact(self) -> bool:
        """Never: whoever asks has just been started."""
        return False

    def allocate(self) -> None:
        """Take the memory; pages come when they are written."""
        self._bytes = np.zeros(self.num_bytes, np.uint8)

    def open(self) -> None:
        """It is there already."""

    def view(self, task: AffineTask) -> Bits:
        """The task's tracker bits [N], writable."""
        dtype, start = bits_dtype(task.dtype), self._offsets[task.key]
        return self._bytes[start : start + task.num_elements * dtype.itemsize].view(dtype)

    def sync(self) -> None:
        """Nothing here is durable."""
