"""Storage and transport as they misbehave: a disk that fills up, payloads that come piecemeal and twice."""

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

from dcr.errors import StoreError
from dcr.model import AttemptId, OwnerClose, PayloadRef
from dcr.transport.durable import replace_durably
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport


class FillingStore(MemoryStore):
    """After ``room`` more writes the disk is full, until ``empty``; None: it never is."""

    def __init__(self, events: Counter[str]) -> None:
        super().__init__()
        self.room: int | None = None
        self._events = events

    def put(self, key: str, data: bytes) -> None:  # type: ignore[explicit-override]  # typing.override: 3.12
        """As the port says."""
        if self.room == 0:
            self._events[f"disk full: {key.split('/')[1]}"] += 1
            raise StoreError(f"{key}: no space left on device")
        if self.room is not None:
            self.room -= 1
        super().put(key, data)

    def empty(self) -> None:
        """There is room again."""
        self.room = None


class TrackerDisks:
    """The owners' disks: the index of a folder in ``full`` cannot be replaced."""

    def __init__(self) -> None:
        self.full: set[Path] = set()
        self.events: Counter[str] = Counter()

    def replace(self, path: Path, data: bytes) -> None:
        """In place of ``replace_durably``."""
        if path.parent in self.full:
            self.events["disk full: trackers"] += 1
            raise OSError(28, "No space left on device")
        replace_durably(path, data)


TRACKER_DISKS = TrackerDisks()
"""The one that the tracker index is patched to write through; worlds are simulated one after the other."""


class UnreliableTransport:
    """Delivers what is there again at every fetch, newest first, and older attempts' payloads with it.

    Nothing of an attempt is seen at once: the first fetch shows one payload, the next two.
    """

    def __init__(self, store: MemoryStore, run: str) -> None:
        self._inner = ObjectTransport(store, run)
        self._leftover = ObjectTransport(store, run)
        self._fetches: dict[AttemptId, int] = {}

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        """As the port says; receivers do not call it."""
        self._inner.publish(attempt, ref, data)

    def close(self, close: OwnerClose) -> None:
        """As the port says; receivers do not call it."""
        self._inner.close(close)

    def fetch(
        self, attempt: AttemptId, seen: Collection[tuple[int, int]]
    ) -> Iterator[tuple[PayloadRef, bytes]]:
        """See the class."""
        del seen
        self._fetches[attempt] = self._fetches.get(attempt, 0) + 1
        visible = list(self._inner.fetch(attempt, ()))[: self._fetches[attempt]]
        for older in sorted(self._fetches, reverse=True)[1:3]:
            visible += self._leftover.fetch(older, ())
        yield from reversed(visible)

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """As the port says."""
        self._inner.stop_and_wait(attempt)
