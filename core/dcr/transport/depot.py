"""Where an instance leaves a composed delta for its ranks in other processes, as owners leave payloads."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

from dcr.codec import Payload, encode_payload, stated_digest
from dcr.errors import StoreError
from dcr.transport.base import ObjectStore
from dcr.transport.keys import payload_key


class Depot:
    """One instance's; its payloads have an owner number of their own, so that instances never meet."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._owner = secrets.randbits(32)

    @contextmanager
    def lend(self, payload: Payload) -> Iterator[Payload]:
        """Store ``payload`` and give it as it is called there; it is removed at the end.

        What a process leaves that dies meanwhile is collected with failed attempts.

        Raises:
            StoreError: the store failed.
        """
        identity = replace(payload.identity, owner=self._owner)
        data = encode_payload(
            payload.items,
            attempt=identity.attempt,
            owner=identity.owner,
            sequence=identity.sequence,
            run=identity.run,
            parent=identity.parent,
            catalogue=identity.catalogue,
        )
        key = payload_key(identity.run, identity.attempt, identity.owner, identity.sequence)
        self._store.put(key, data)
        try:
            yield Payload(identity, stated_digest(data), payload.items, data)
        finally:
            with suppress(StoreError):
                self._store.delete(key)
