"""Manifests that failed attempts left: each was stored before its attempt failed at a receiver (P1)."""

from collections.abc import Callable

from dcr.errors import MissingObject, PayloadError
from dcr.model import AttemptId, Manifest, from_json
from dcr.transport.base import Archive, ObjectStore

MANIFEST = "manifest"


class Manifests:
    """Looks through a run's manifests; one that it has seen and left is not read again."""

    def __init__(self, store: ObjectStore, archive: Archive, run: str) -> None:
        self._store = store
        self._archive = archive
        self._prefix = f"{run}/{MANIFEST}/"
        self._kept: set[str] = set()

    def remove(self, has_failed: Callable[[AttemptId], bool]) -> list[str]:
        """Delete the manifests of attempts that ``has_failed``; their keys. Damaged ones stay. Idempotent.

        ``has_failed`` must hold for good: nobody may be about to commit such an attempt.

        Raises:
            StoreError: the store failed; call again.
        """
        removed = []
        for key in self._store.list(self._prefix):
            digest = key.removeprefix(self._prefix)
            if digest in self._kept:
                continue
            if self._is_left(digest, has_failed):
                self._store.delete(key)
                removed.append(key)
            else:
                self._kept.add(digest)
        return removed

    def _is_left(self, digest: str, has_failed: Callable[[AttemptId], bool]) -> bool:
        try:
            manifest = from_json(Manifest, self._archive.get_object(MANIFEST, digest))
        except (MissingObject, PayloadError):
            return False
        return has_failed(manifest.attempt)
