"""Removing versions that nobody needs any more (DESIGN P1, B5).

Pruning to version f keeps everything that f and later ones are rebuilt from: f's anchor, and the deltas
after it. It is announced before anything goes, so that it can be finished after a crash, and given up for
now where a reader's lease names an older version (``dcr.transport.reading``).
"""

import logging
from collections.abc import Callable, Iterator, Sequence

from dcr.audit import table_digest
from dcr.errors import IntegrityError, MissingObject, PayloadError
from dcr.model import AttemptId, Catalogue, CommitRecord, Manifest, from_json
from dcr.transport.base import Anchor, Archive, ObjectStore
from dcr.transport.chain import history, older
from dcr.transport.keys import (
    ANCHOR,
    ANCHORED,
    CLOSE,
    FLOOR,
    PAYLOAD,
    anchor_key,
    anchored_key,
    floor_key,
    parse_attempt,
)
from dcr.transport.reading import live_leases, wall_clock
from dcr.transport.tables import joined_audit

_log = logging.getLogger(__name__)


class Pruner:
    """Prunes one run. Nobody but the process of trainer rank 0 has one, and it calls after commits only."""

    def __init__(
        self,
        store: ObjectStore,
        archive: Archive,
        catalogue: Catalogue,
        clock: Callable[[], float] = wall_clock,
    ) -> None:
        self._store = store
        self._archive = archive
        self._catalogue = catalogue
        self._clock = clock
        self._run = catalogue.run
        self._done = -1

    def prune(self, record: CommitRecord, keep_versions: int) -> list[str]:
        """Remove what the newest ``keep_versions`` versions up to ``record``'s, committed, do not need.

        ``keep_versions`` 0: nothing but what was announced before. Return the removed keys. Idempotent;
        may be interrupted anywhere.

        Raises:
            IntegrityError: the chain that is to be kept cannot be read.
            StoreError: the store failed; call again.
        """
        if not keep_versions and self._done >= 0:
            return []
        retained = self._archive.retained()
        floor = retained.floor
        base = _base(retained.anchors, record.version - keep_versions + 1) if keep_versions else None
        if base is not None and base.attempt.version > floor:
            self._require_whole(base)
            floor = base.attempt.version
            self._store.put(floor_key(self._run, floor), b"{}")
        if floor <= max(self._done, 0):
            self._done = floor
            return []
        # a reader of ``floor`` itself may have begun before that had its anchor, so with what goes
        if any(lease.version <= floor for lease in live_leases(self._store, self._run, clock=self._clock)):
            _log.info("versions before %d stay for now: somebody reads one of them, or it", floor)
            return []
        removed = list(self._remove(record, floor, retained.anchors))
        self._done = floor
        return removed

    def collect_unlinked(self, record: CommitRecord) -> list[str]:
        """Remove planes without an entry, be it damaged, but for those of ``record``'s own version."""
        entries = f"{self._run}/{ANCHORED}/"
        named = {parse_attempt(key.removeprefix(entries)) for key in self._store.list(entries)}
        prefix, removed = f"{self._run}/{ANCHOR}/", []
        for key in self._store.list(prefix):
            attempt = parse_attempt(key.removeprefix(prefix).partition("/")[0])
            if attempt is not None and attempt not in named and attempt.number < record.attempt.number:
                self._store.delete(key)
                removed.append(key)
        return removed

    def _require_whole(self, base: Anchor) -> None:
        """Every payload of the anchor that all later versions will hang on is there.

        Raises:
            IntegrityError: one is not, or its list is damaged.
        """
        try:
            manifest = from_json(Manifest, self._archive.get_object("manifest", base.manifest))
        except (MissingObject, PayloadError) as err:
            raise IntegrityError(f"the anchor of version {base.attempt.version} is damaged: {err}") from err
        held = set(self._store.list(f"{self._run}/{ANCHOR}/{base.attempt}/"))
        wanted = {anchor_key(self._run, base.attempt, ref.owner, ref.sequence) for ref in manifest.payloads}
        if missing := sorted(wanted - held):
            raise IntegrityError(f"the anchor of version {base.attempt.version} lacks {missing[0]}")

    def _remove(self, record: CommitRecord, floor: int, anchors: Sequence[Anchor]) -> Iterator[str]:
        kept = history(self._archive, record)
        first = kept[0]
        tables = {record.audit, *(self._table(manifest) for manifest in kept)}
        for digest, manifest in reversed(list(older(self._archive, first))):
            yield from self._remove_attempts(manifest)
            if (table := self._table(manifest)) and table not in tables:
                yield self._delete(f"{self._run}/audit/{table}")
            yield self._delete(f"{self._run}/manifest/{digest}")
        yield from self._remove_attempts(first)
        for anchor in anchors:
            if anchor.attempt.version < floor:
                yield from self._remove_below(f"{self._run}/{ANCHOR}/{anchor.attempt}/")
                yield self._delete(f"{self._run}/manifest/{anchor.manifest}")
                yield self._delete(anchored_key(self._run, anchor.attempt))  # last: it names the rest
        for key in self._store.list(f"{self._run}/{FLOOR}/"):
            if key != floor_key(self._run, floor):
                yield self._delete(key)

    def _remove_attempts(self, manifest: Manifest) -> Iterator[str]:
        """What lies under the attempt that committed a version, and under earlier ones that it names (P6)."""
        attempts: dict[AttemptId, None] = {manifest.attempt: None}
        attempts.update((manifest.attempt_of(ref), None) for ref in manifest.payloads)
        for attempt in attempts:
            for kind in (PAYLOAD, CLOSE):
                yield from self._remove_below(f"{self._run}/{kind}/{attempt}/")

    def _remove_below(self, prefix: str) -> Iterator[str]:
        for key in self._store.list(prefix):
            yield self._delete(key)

    def _delete(self, key: str) -> str:
        self._store.delete(key)
        return key

    def _table(self, manifest: Manifest) -> str:
        """Digest of the version's audit table; empty if its lists do not prove it whole."""
        try:
            return table_digest(joined_audit(self._catalogue, manifest.owners))
        except IntegrityError:
            return ""


def _base(anchors: Sequence[Anchor], version: int) -> Anchor | None:
    """The newest anchor that ``version`` can be rebuilt from."""
    return next((anchor for anchor in anchors if anchor.attempt.version <= version), None)
