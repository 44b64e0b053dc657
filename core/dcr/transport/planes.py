"""Later anchors: all planes of a version, beside the delta that led to it (DESIGN B5, P14).

Each owner stores its shards and closes its list; the anchor exists from the moment at which its one entry
does. Nothing else refers to it, so one that was never finished is nothing but bytes to collect.
"""

from collections.abc import Sequence

from dcr.audit import table_digest
from dcr.errors import IntegrityError
from dcr.model import (
    AttemptId,
    Catalogue,
    CommitRecord,
    Manifest,
    OwnerClose,
    PayloadRef,
    RunId,
    from_json,
    to_json,
)
from dcr.transport.base import Anchor, Archive, ObjectStore
from dcr.transport.keys import anchor_close_key, anchor_key, anchored_key
from dcr.transport.tables import joined_audit


class PlanesOutlet:
    """Where an owner's planes go; implements ``Outlet``."""

    def __init__(self, store: ObjectStore, run: RunId) -> None:
        self._store = store
        self._run = run

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        """Store one payload; the same bytes again are no error. Raises Conflict, StoreError."""
        self._store.put(anchor_key(self._run, attempt, ref.owner, ref.sequence), data)

    def close(self, close: OwnerClose) -> None:
        """Store the closed list; the same list again is no error. Raises Conflict, StoreError."""
        self._store.put(anchor_close_key(self._run, close.attempt, close.owner), to_json(close))


def closed_planes(store: ObjectStore, run: RunId, attempt: AttemptId, owner: int) -> OwnerClose:
    """The list that ``owner`` closed.

    Raises:
        MissingObject: it has not.
        PayloadError: it is damaged.
    """
    return from_json(OwnerClose, store.get(anchor_close_key(run, attempt, owner)))


def link_anchor(
    store: ObjectStore,
    archive: Archive,
    record: CommitRecord,
    catalogue: Catalogue,
    closes: Sequence[OwnerClose],
) -> Anchor:
    """Let chains begin at ``record``'s version, whose planes the ``closes`` of all owners list. Idempotent.

    Raises:
        IntegrityError: the lists do not prove that version.
        Conflict: it has another anchor already.
        StoreError: the store failed; call again.
    """
    if (found := table_digest(joined_audit(catalogue, closes))) != record.audit:
        raise IntegrityError(
            f"version {record.version}: the planes have the audit table {found}, the record {record.audit}"
        )
    manifest = Manifest(record.run, record.attempt, -1, None, record.catalogue, True, tuple(closes))
    anchor = Anchor(
        attempt=record.attempt,
        link=record.manifest,
        manifest=archive.put_object("manifest", to_json(manifest)),
        num_bytes=manifest.num_bytes,
        step=record.step,
    )
    store.put(anchored_key(record.run, record.attempt), to_json(anchor))
    return anchor
