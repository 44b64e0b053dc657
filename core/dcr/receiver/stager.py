"""What a receiver does while it still serves v: hold an attempt's payloads as they arrive (DESIGN R19, P6).

No storage is touched and the receiver's lock is not needed, so serving, audits and fences go on. Payloads of
earlier attempts at the same candidate stay held: the closed manifest may name them by digest, and whatever
it does not name is discarded when the attempt is opened.
"""

import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from dcr import observe
from dcr.codec.head import read_head
from dcr.errors import AttemptFailed, MissingObject, PayloadError
from dcr.model import AttemptId, CommitRecord, Manifest, PayloadRef, StagedAck, from_json
from dcr.receiver import rules
from dcr.receiver.area import StagingArea
from dcr.transport.base import Archive, Transport

_MAX_DAMAGED = 3


@dataclass(slots=True)
class _Work:
    """The attempt whose payloads are collected. ``failure``: why it cannot be held."""

    attempt: AttemptId
    record: CommitRecord
    since: int
    failure: AttemptFailed | None = None
    closed: bool = False


class Stager:
    """Fills ``area``. ``pull`` runs in a background thread, the calls in those of a server."""

    def __init__(self, name: str, area: StagingArea, transport: Transport, archive: Archive) -> None:
        self._name = name
        self._area = area
        self._transport = transport
        self._archive = archive
        self._pulling = threading.Lock()
        self._work: _Work | None = None
        self._damaged: dict[tuple[AttemptId, int, int], int] = {}

    @property
    def attempt(self) -> AttemptId | None:
        """Whose payloads are collected now; None without one."""
        work = self._work
        return None if work is None else work.attempt

    def begin(self, attempt: AttemptId, record: CommitRecord, since: int) -> None:
        """Collect payloads of ``attempt``, which leads from ``record``; idempotent."""
        work = self._work
        if work is not None and work.attempt == attempt:
            return
        self._area.forget_before(since)
        self._damaged.clear()
        self._work = _Work(attempt, record, since)

    def end(self) -> None:
        """Collect no more, and hold nothing: gates have shut, or the transition is over."""
        self._work = None
        self._area.retain(())

    def pull(self) -> int:
        """Hold what is visible now; returns how many payloads that were. Why it cannot be held is kept.

        Raises:
            StoreError: fetching failed for now; nothing is lost, call again.
        """
        work = self._work
        if work is None or work.closed or work.failure is not None:
            return 0
        with self._pulling:
            return self._pull(work)

    def complete(self, attempt: AttemptId, digest: str, cancelled: Callable[[], bool]) -> StagedAck:
        """Hold everything that the manifest with that digest names, whatever attempt sent it.

        Raises:
            AttemptFailed: the manifest is of something else, or a payload is missing, damaged or has no room.
            StoreError: the store failed for now.
        """
        work = self._current(attempt)
        manifest = self.manifest(work.record, attempt, digest)
        self.pull()
        with self._pulling:
            if work.failure is not None:  # what nobody names may have been in the way
                rules.discard_unnamed(self._area, manifest)
            for ref in manifest.payloads:
                if cancelled():
                    raise AttemptFailed(f"attempt {attempt} was stopped while its payloads were staged")
                if self._area.find(ref.digest) is None:
                    self._fetch(work, manifest, ref)
            work.closed = True
        return self._ack(manifest, digest)

    def manifest(self, record: CommitRecord, attempt: AttemptId, digest: str) -> Manifest:
        """The closed manifest, which leads from ``record`` to ``attempt``. Raises AttemptFailed."""
        manifest = from_json(Manifest, self._archive.get_object("manifest", digest))
        rules.check_manifest(manifest, attempt, record, xor_allowed=True)
        return manifest

    def open(self, manifest: Manifest) -> "StagedSource":
        """Discard what ``manifest`` does not name; the rest, to be applied. It is the attempt's from here on.

        Raises:
            AttemptFailed: something that it names is not held.
        """
        missing = [ref for ref in manifest.payloads if self._area.find(ref.digest) is None]
        if missing:
            raise AttemptFailed(
                f"{self._name}: {len(missing)} of {len(manifest.payloads)} payloads are not staged, the "
                f"first is {missing[0].owner}/{missing[0].sequence}"
            )
        self._work = None
        rules.discard_unnamed(self._area, manifest)
        return StagedSource(self._area, manifest)

    def _current(self, attempt: AttemptId) -> _Work:
        work = self._work
        if work is None or work.attempt != attempt:
            raise AttemptFailed(f"attempt {attempt} is not staged here (staged: {self.attempt})")
        return work

    def _pull(self, work: _Work) -> int:
        num = 0
        try:
            for ref, data in self._transport.fetch(work.attempt, self._area.keys(work.attempt)):
                num += self._hold(work, ref, data)
                if self._work is not work:
                    break
        except AttemptFailed as err:
            work.failure = err
        return num

    def _hold(self, work: _Work, ref: PayloadRef, data: bytes) -> bool:
        try:
            head = read_head(data)
        except PayloadError as err:
            self._count_damage((work.attempt, ref.owner, ref.sequence), err)
            return False
        identity = head.identity
        if not rules.may_stage(identity, work.record, work.attempt, work.since):
            return False
        where = {"owner": identity.owner, "sequence": identity.sequence, "num_bytes": len(data)}
        with observe.span("receiver.hold", attempt=str(work.attempt), **where):
            self._area.add(identity.attempt, (identity.owner, identity.sequence), head.digest, data)
        return True

    def _fetch(self, work: _Work, manifest: Manifest, ref: PayloadRef) -> None:
        """Fetch what the manifest names from its place in the archive, perhaps under an earlier attempt."""
        for _ in range(_MAX_DAMAGED):
            try:
                data = self._archive.get_payload(manifest, ref)
            except MissingObject as err:
                raise AttemptFailed(f"{self._name}: a payload that is named is missing: {err}") from err
            self._hold(work, ref, data)
            if self._area.find(ref.digest) is not None:
                return
        raise AttemptFailed(
            f"{self._name}: payload {ref.owner}/{ref.sequence} of attempt {manifest.attempt_of(ref)} is "
            "stored with other content than the manifest names"
        )

    def _count_damage(self, key: tuple[AttemptId, int, int], err: PayloadError) -> None:
        self._damaged[key] = self._damaged.get(key, 0) + 1
        if self._damaged[key] >= _MAX_DAMAGED:
            raise AttemptFailed(f"payload {key[1:]} stays damaged: {err}") from err

    def _ack(self, manifest: Manifest, digest: str) -> StagedAck:
        held = [one for ref in manifest.payloads if (one := self._area.find(ref.digest)) is not None]
        return StagedAck(
            receiver=self._name,
            attempt=manifest.attempt,
            manifest=digest,
            num_payloads=len(held),
            num_reused=sum(one.attempt != manifest.attempt for one in held),
            num_bytes=sum(one.num_bytes for one in held),
            spilled_bytes=sum(one.num_bytes for one in held if one.data is None),
        )


class StagedSource:
    """The staged payloads of an opened attempt, in the manifest's order; each is given once."""

    def __init__(self, area: StagingArea, manifest: Manifest) -> None:
        self._area = area
        self._manifest = manifest
        self.named = {(r.owner, r.sequence): r.attempt for r in manifest.payloads if r.attempt is not None}

    def fetch(
        self, attempt: AttemptId, seen: Collection[tuple[int, int]]
    ) -> Iterator[tuple[PayloadRef, bytes]]:
        """As ``dcr.transport.base.Transport.fetch``; what was given before is not here any more."""
        del attempt
        for ref in self._manifest.payloads:
            if (ref.owner, ref.sequence) not in seen:
                data = self._area.take(ref.digest)
                if data is not None:
                    yield ref, data
