"""The run's durable objects: manifests, audit tables, catalogues, committed payloads (DESIGN P3, B5)."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dcr.errors import ConfigError, PayloadError
from dcr.model import Manifest, PayloadRef, RunId, digest_hex
from dcr.transport.base import ObjectStore, Retained
from dcr.transport.keys import RESERVED, anchor_key, check_segment, payload_key
from dcr.transport.reading import reading
from dcr.transport.retained import retained

_DIGEST = re.compile(r"[0-9a-f]{32}", re.ASCII)


class StoreArchive:
    """Archive over an ObjectStore, bound to one run: ``<run>/<kind>/<digest>``. Thread-safe."""

    def __init__(self, store: ObjectStore, run: RunId) -> None:
        self._store = store
        self._run = check_segment(run, "run id")
        self._read: list[int] = []

    def put_object(self, kind: str, data: bytes) -> str:
        """Store ``data`` durably under its own digest and return the digest; idempotent.

        Raises:
            Conflict: a damaged object holds that name; an operator must remove it.
            StoreError: the store failed; nothing is lost, put again.
        """
        digest = digest_hex(data)
        self._store.put(self._key(kind, digest), data)
        return digest

    def get_object(self, kind: str, digest: str) -> bytes:
        """Return an object whose bytes were verified against ``digest``.

        Raises:
            MissingObject: it is not there.
            PayloadError: ``digest`` is none, or the stored bytes do not have it.
        """
        if not _DIGEST.fullmatch(digest):
            raise PayloadError(f"{kind} digest {digest[:80]!r} is not 32 lower-case hexadecimal digits")
        data = self._store.get(self._key(kind, digest))
        if (actual := digest_hex(data)) != digest:
            raise PayloadError(f"{kind} {digest} is damaged: its bytes have the digest {actual}")
        return data

    def get_payload(self, manifest: Manifest, ref: PayloadRef) -> bytes:
        """Return the bytes of a payload that ``manifest`` names (unverified; the codec parses them).

        Raises:
            MissingObject: it is not there.
        """
        key = anchor_key if manifest.is_later_anchor else payload_key
        return self._store.get(key(self._run, manifest.attempt_of(ref), ref.owner, ref.sequence))

    def retained(self) -> Retained:
        """See ``Archive``."""
        return retained(self._store, self._run)

    @contextmanager
    def reading(self, version: int) -> Iterator[Callable[[], None]]:
        """See ``Archive``."""
        covered = lambda: any(held <= version for held in tuple(self._read))  # noqa: E731 -- asked later
        with reading(self._store, self._run, version, covered=covered) as keep:
            self._read.append(version)
            try:
                yield keep
            finally:
                self._read.remove(version)

    def _key(self, kind: str, digest: str) -> str:
        if check_segment(kind, "kind") in RESERVED:
            raise ConfigError(f"kind {kind!r} is taken: such keys are no digests and are collected")
        return f"{self._run}/{kind}/{digest}"
