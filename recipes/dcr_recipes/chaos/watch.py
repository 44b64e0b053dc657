"""Looking at a run from outside, in threads: what is committed, and what each instance serves."""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from dcr.errors import RefitError
from dcr.model import CommitRecord
from dcr_recipes.chaos.history import Commit
from dcr_recipes.chaos.recoveries import Sight
from dcr_recipes.verify import Status

_PAUSE_S = 0.1


class Asked(Protocol):
    """A serving process that can be asked how it is; see ``dcr_recipes.runtime.remote``."""

    def status(self) -> Status:
        """Answer without waiting."""
        ...


@dataclass(frozen=True, slots=True)
class SeenCommit:
    """The control plane, asked at ``asked_at``, held ``commit``."""

    commit: Commit
    asked_at: float


Seen: TypeAlias = SeenCommit | Sight


@dataclass(slots=True)
class Watchers:
    """One thread for each instance and one for the control plane, from ``start`` to ``close``.

    ``read`` returns the committed record and raises a RefitError while it cannot.
    """

    read: Callable[[], CommitRecord]
    instances: Mapping[str, Asked]
    clock: Callable[[], float]
    _queue: "SimpleQueue[Seen]" = field(default_factory=SimpleQueue)
    _ended: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        """Begin to look."""
        looks = [self._look_at_record]
        looks += [_looking(self._look_at, name) for name in self.instances]
        for look in looks:
            thread = threading.Thread(target=self._repeat, args=(look,), name="watcher", daemon=True)
            thread.start()
            self._threads.append(thread)

    def drain(self) -> list[Seen]:
        """What was seen since the last call, in order."""
        found: list[Seen] = []
        while True:
            try:
                found.append(self._queue.get_nowait())
            except Empty:
                return found

    def close(self) -> None:
        """Stop looking."""
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, look: Callable[[], None]) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(RefitError):  # away for now, which is what chaos is about
                look()
            self._ended.wait(_PAUSE_S)

    def _look_at_record(self) -> None:
        asked_at = self.clock()
        self._queue.put(SeenCommit(commit_of(self.read()), asked_at))

    def _look_at(self, name: str) -> None:
        asked_at = self.clock()
        status = self.instances[name].status()
        self._queue.put(Sight(name, status.process, status.version, status.is_open, asked_at))


def commit_of(record: CommitRecord) -> Commit:
    """What the history keeps of a record."""
    return Commit(record.version, str(record.attempt), record.manifest)


def _looking(look: Callable[[str], None], name: str) -> Callable[[], None]:
    return lambda: look(name)
