"""Objects in this process's memory, for tests and the protocol simulation."""

import threading

from dcr.errors import ConfigError, Conflict, MissingObject
from dcr.transport.keys import check_key, check_prefix


class MemoryStore:
    """ObjectStore with the semantics of ``DirectoryStore`` and no durability. Thread-safe."""

    def __init__(self) -> None:
        self._objects: dict[str, bytes] = {}
        self._folders: set[str] = set()
        self._lock = threading.Lock()

    def put(self, key: str, data: bytes) -> None:
        """Create the object; see ``ObjectStore.put``."""
        parts = check_key(key).split("/")
        parents = ["/".join(parts[:end]) for end in range(1, len(parts))]
        with self._lock:
            if key in self._folders or not self._objects.keys().isdisjoint(parents):
                raise ConfigError(f"object key {key!r}: a key cannot also be a folder of other keys")
            if self._objects.setdefault(key, bytes(data)) != data:
                raise Conflict(f"object {key} exists with other bytes; it keeps them")
            self._folders.update(parents)

    def get(self, key: str) -> bytes:
        """Return the whole object; see ``ObjectStore.get``."""
        check_key(key)
        with self._lock:
            try:
                return self._objects[key]
            except KeyError:
                raise MissingObject(f"no object {key}") from None

    def list(self, prefix: str) -> list[str]:
        """Keys that start with ``prefix``, sorted."""
        check_prefix(prefix)
        with self._lock:
            return sorted(key for key in self._objects if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is no error."""
        check_key(key)
        with self._lock:
            self._objects.pop(key, None)
