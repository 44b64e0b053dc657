"""Payloads from an engine's front to its workers, where these cannot reach the run's store (DESIGN R18).

The front has fetched a payload once, for all ranks of its instance; it lies in a folder that they read as a
store while they apply it. Nothing there is trusted: a worker parses it and compares its digest.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dcr.codec import Payload
from dcr.errors import AttemptFailed
from dcr.model import Catalogue, to_json
from dcr.receiver.workers.messages import Configure
from dcr.transport.archive import StoreArchive
from dcr.transport.directory import DirectoryStore
from dcr.transport.keys import payload_key


class Spool:
    """``folder``, which front and workers can read, is this instance's alone. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._store = DirectoryStore(folder)
        self._lock = threading.Lock()
        self._readers: Counter[str] = Counter()

    def setup(self, catalogue: Catalogue) -> Configure:
        """What workers are told of the run: this folder, with the catalogue in it. Raises StoreError."""
        digest = StoreArchive(self._store, catalogue.run).put_object("catalogue", to_json(catalogue))
        return Configure(str(self._folder), catalogue.run, digest)

    @contextmanager
    def lend(self, payload: Payload) -> Iterator[None]:
        """Inside the block workers find ``payload``; written once for all ranks that ask meanwhile.

        Raises:
            AttemptFailed: the payload's own bytes were not kept.
            StoreError: the folder cannot be written.
        """
        if payload.raw is None:
            raise AttemptFailed(f"payload {payload.owner}/{payload.sequence} has no bytes to hand on")
        key = payload_key(payload.run, payload.attempt, payload.owner, payload.sequence)
        with self._lock:
            if not self._readers[key]:
                self._store.delete(key)  # left by a process that died: perhaps of other content
                self._store.put(key, payload.raw)
            self._readers[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._readers[key] -= 1
                if not self._readers[key]:
                    del self._readers[key]
                    self._store.delete(key)
