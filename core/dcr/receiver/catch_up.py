"""Bringing storage that holds an older version to the committed one by one composed delta (DESIGN B5, P14).

What storage holds is never taken from anybody's word: it is read whole, and its digests are compared with
those of the versions behind the record. Afterwards it is read whole again and compared with the record's
own table. So a process that slept, one that was evicted, and one that has just loaded the checkpoint that
training began with are the same case; anything else is loaded densely. The caller holds the receiver's lock.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dcr import observe
from dcr.codec import Item, Payload, PayloadId
from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import (
    AttemptId,
    AuditTable,
    Bits,
    Catalogue,
    Classification,
    CommitRecord,
    Encoding,
    Manifest,
    PathClass,
    width_bytes,
)
from dcr.receiver.writer import Cancelled, Writer, require_wanted
from dcr.transport.base import Archive
from dcr.transport.chain import newest_first
from dcr.transport.compose import composed
from dcr.transport.replay import replay_tensors
from dcr.transport.tables import joined_audit

_log = logging.getLogger(__name__)
_TAKES_DIFFERENCES = (PathClass.XOR, PathClass.SKIP)

Lend: TypeAlias = Callable[[Payload], AbstractContextManager[Payload]]
"""Makes a composed delta known to ranks in other processes for a while; gives it as they know it."""


@dataclass(frozen=True, slots=True)
class CatchUpPolicy:
    """``memory_bytes`` bounds what is composed at a time: the chain is read again for each further part.

    ``lend``: where ranks elsewhere find what they are to apply.
    """

    memory_bytes: int = 2 << 30
    lend: Lend = nullcontext


class CatchUp:
    """Knows one instance's writer and the run's archive."""

    def __init__(
        self, writer: Writer, archive: Archive, catalogue: Catalogue, policy: CatchUpPolicy | None = None
    ) -> None:
        self._writer = writer
        self._archive = archive
        self._catalogue = catalogue
        self._policy = policy or CatchUpPolicy()

    def bring(self, record: CommitRecord, table: AuditTable, cancelled: Cancelled) -> Classification | None:
        """Lead storage from the version that it is proven to hold to ``record``'s, which ``table`` proves.

        Returns the classes that hold from now on; None, and nothing was written, if a dense load is due.

        Raises:
            Exception: whatever failed, the loader's own errors included; storage may be torn.
        """
        classes = self._writer.prewarm()
        resident = self._resident()
        if not resident:
            return None
        if _agree(resident, table):
            _log.info("version %d is resident already and proven", record.version)
            return classes
        with self._archive.reading(self._archive.retained().floor) as keep:
            found = self._behind(record, resident, keep)
            if found is None:
                return None
            held, manifests = found
            step = _Step(record, held, manifests, classes, _looking(keep, cancelled))
            num_bytes = sum(manifest.num_bytes for manifest in manifests)
            where = {"since": held, "version": record.version, "num_bytes": num_bytes}
            with observe.span("receiver.catch_up", **where):
                self._apply(step, cancelled)
                self._require(record, table)
        _log.info("from version %d to %d by one delta of %d bytes", held, record.version, num_bytes)
        return classes

    def _resident(self) -> AuditTable:
        """Digests of what is resident; empty where it cannot be read back as one version."""
        try:
            return self._writer.audit()
        except (AttemptFailed, IntegrityError) as err:
            _log.info("what is resident is no version: %s", err)
            return {}

    def _behind(
        self, record: CommitRecord, resident: AuditTable, keep: Callable[[], None]
    ) -> tuple[int, tuple[Manifest, ...]] | None:
        """The newest version before ``record``'s that has the digests ``resident``, and all links after it.

        ``keep`` is called at each link. None if there is none, or if the links are more bytes than a dense
        load reads.
        """
        anchors = {anchor.attempt.version: anchor.num_bytes for anchor in self._archive.retained().anchors}
        newer: list[Manifest] = []
        num_bytes, dense_bytes = 0, None
        for manifest in newest_first(self._archive, record):
            keep()
            version = manifest.attempt.version
            if newer and self._proves(manifest, resident):
                return version, tuple(newer[::-1])
            if dense_bytes is None and version in anchors:
                dense_bytes = num_bytes + anchors[version]
            newer.append(manifest)
            num_bytes += manifest.num_bytes
            if dense_bytes is not None and num_bytes > dense_bytes:
                _log.info("a dense load of version %d is less to read than deltas", record.version)
                return None
        return None

    def _proves(self, manifest: Manifest, resident: AuditTable) -> bool:
        """Whether ``resident`` are the digests that the manifest's lists add up to."""
        try:
            return _agree(resident, joined_audit(self._catalogue, manifest.owners))
        except IntegrityError:  # they do not prove the version whole
            return False

    def _apply(self, step: "_Step", cancelled: Cancelled) -> None:
        sequence = 0
        self._writer.begin(clean=True)
        for names in self._groups(step.classes):
            passes = composed(self._archive, step.manifests, self._catalogue, names, step.keep)
            for items in self._takeable(step, passes):
                payload = _payload(step.record, self._catalogue, step.held, sequence, items)
                sequence += 1
                with self._policy.lend(payload) as lent:
                    self._writer.apply(lent, allow_xor=True, cancelled=cancelled)
                    self._writer.synchronize()
                self._writer.begin(clean=True)  # lets go of it: what comes out of all is proven whole

    def _groups(self, classes: Classification) -> Iterator[list[str]]:
        """Names that some rank holds, so many at a time as may be composed at once."""
        group: list[str] = []
        filled = 0
        for name, spec in self._catalogue.by_name().items():
            if classes.get(name) is PathClass.SKIP:
                continue
            size = spec.num_elements * (1 + width_bytes(spec.dtype))
            if group and filled + size > self._policy.memory_bytes:
                yield group
                group, filled = [], 0
            group.append(name)
            filled += size
        yield group

    def _takeable(self, step: "_Step", passes: list[list[Item]]) -> list[list[Item]]:
        """What the loader's paths accept: values in place of differences they cannot take (P14)."""
        builds = {
            item.name
            for items in passes
            for item in items
            if item.encoding is not Encoding.OVERWRITE
            and step.classes.get(item.name) not in _TAKES_DIFFERENCES
        }
        if not builds:
            return passes
        specs = self._catalogue.by_name()
        primary = {name: specs[name].name for name in builds}
        names = sorted(set(primary.values()))
        bits = replay_tensors(self._archive, step.record, self._catalogue, names, look=step.keep)
        absolute = [
            _absolute([item for items in passes for item in items if item.name == name], bits[primary[name]])
            for name in sorted(builds)
        ]
        rest = [[item for item in items if item.name not in builds] for items in passes]
        return [[*rest[0], *absolute], *(items for items in rest[1:] if items)]

    def _require(self, record: CommitRecord, table: AuditTable) -> None:
        """Every resident bit is the record's.

        Raises:
            IntegrityError: names the tensors that are not.
        """
        resident = self._writer.audit()
        wrong = sorted(name for name, digest in resident.items() if digest != table.get(name))
        if wrong:
            raise IntegrityError(
                f"{', '.join(wrong[:8])}: not version {record.version} after the composed delta"
            )


@dataclass(frozen=True, slots=True)
class _Step:
    """From version ``held`` over ``manifests`` to ``record``'s, into paths of ``classes``."""

    record: CommitRecord
    held: int
    manifests: tuple[Manifest, ...]
    classes: Classification
    keep: Callable[[], None]


def _looking(keep: Callable[[], None], cancelled: Cancelled) -> Callable[[], None]:
    """``keep``, called before each payload is read, and a look whether anybody still waits for it."""

    def look() -> None:
        require_wanted(cancelled, "catching up")
        keep()

    return look


def _agree(resident: AuditTable, table: Mapping[str, object]) -> bool:
    return all(digest == table.get(name) for name, digest in resident.items())


def _absolute(items: Sequence[Item], bits: Bits) -> Item:
    """All elements that ``items`` of one tensor touch, with their final ``bits`` [N]."""
    first = items[0]
    locations = np.unique(np.concatenate([item.locations for item in items]))
    return Item(first.name, first.shape, first.dtype, Encoding.OVERWRITE, locations, bits[locations])


def _payload(
    record: CommitRecord, catalogue: Catalogue, held: int, sequence: int, items: Sequence[Item]
) -> Payload:
    """One pass under a name that no attempt has: the version it leads from, the record's number.

    Numbers are handed out once in a run, and this one to another version.
    """
    attempt = AttemptId(number=record.attempt.number, version=held)
    identity = PayloadId(record.run, attempt, 0, sequence, held, catalogue.digest())
    return Payload(identity, "", tuple(items))
