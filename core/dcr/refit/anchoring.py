"""When a version gets an anchor of its own, and how a trainer's ranks write it together (DESIGN B5, P14)."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from dcr import observe
from dcr.config import ChainConfig
from dcr.errors import AttemptFailed, Conflict, IntegrityError, MissingObject, PayloadError, StoreError
from dcr.model import Catalogue, CommitRecord, Manifest, OwnerClose, from_json
from dcr.refit.site import Site
from dcr.transport.base import Outlet
from dcr.transport.chain import links
from dcr.transport.planes import PlanesOutlet, closed_planes, link_anchor

_log = logging.getLogger(__name__)
_LOOK_AGAIN_S = 0.05
_PATIENCE_S = 30.0
_BROKEN = 1 << 62
_FACTOR = 3.0
"""Ranks own equal shares: one that takes so many times as long as rank 0 has failed."""


class Planes(Protocol):
    """The part of ``OwnerAgent`` that anchors need."""

    def publish_planes(self, record: CommitRecord, outlet: Outlet) -> OwnerClose:
        """Publish the trackers of ``record``'s version, whole."""
        ...


@dataclass(slots=True)
class _Since:
    """What was committed after the newest anchor that is known: versions up to ``version``, their bytes."""

    anchor: int
    version: int
    num_bytes: int


class Anchorer:
    """One trainer rank's. All ranks call it after every commit and come to the same decision by themselves.

    They look at what is in the store, which nobody changes before rank 0 has asked for the next transition.
    Failing to write an anchor is no error: chains begin at an earlier one, and the next version tries again.
    """

    def __init__(
        self,
        site: Site,
        config: ChainConfig,
        catalogue: Catalogue,
        *,
        rank: int,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._site = site
        self._config = config
        self._catalogue = catalogue
        self._rank = rank
        self._clock = clock
        self._pause = pause
        self._archive = site.archive
        self._since: _Since | None = None

    def after_commit(self, record: CommitRecord, planes: Planes) -> bool:
        """Write this rank's planes of ``record``'s version if an anchor is due; whether it was written."""
        try:
            if not self._is_due(record):
                return False
            started = self._clock()
            with observe.span(observe.ANCHOR, version=record.version):
                planes.publish_planes(record, PlanesOutlet(self._site.store, self._site.run))
            if self._rank == 0:
                self._link(record, self._clock() - started)
        except (AttemptFailed, Conflict, IntegrityError, PayloadError, StoreError) as err:
            _log.warning("version %d gets no anchor: %s", record.version, err)
            return False
        return True

    def _is_due(self, record: CommitRecord) -> bool:
        config = self._config
        if not record.version or not (config.anchor_every or config.anchor_share):
            return False
        since = self._advance(record)
        if not self._exceeds(since):
            return False
        newest = next(iter(self._archive.retained().anchors), None)
        if newest is not None and newest.attempt.version > since.anchor:
            since = self._since = self._count(record, newest.attempt.version)
        return self._exceeds(since)

    def _exceeds(self, since: _Since) -> bool:
        every, share = self._config.anchor_every, self._config.anchor_share
        many = every > 0 and since.version - since.anchor >= every
        return (
            many
            or since.num_bytes >= _BROKEN
            or (share > 0 and since.num_bytes > share * self._catalogue.num_bytes)
        )

    def _advance(self, record: CommitRecord) -> _Since:
        """Take ``record``'s version into account; after a restart everything since the newest anchor."""
        since = self._since
        if since is None:
            newest = next(iter(self._archive.retained().anchors), None)
            since = self._count(record, newest.attempt.version if newest else 0)
        elif since.version < record.version:
            since = self._count(record, since.version, since)
        self._since = since
        return since

    def _count(self, record: CommitRecord, version: int, before: _Since | None = None) -> _Since:
        """Add what was committed after ``version``; without bound if that cannot be read any more."""
        try:
            num_bytes = sum(manifest.num_bytes for manifest in links(self._archive, record, version))
        except IntegrityError as err:
            _log.warning(
                "version %d gets an anchor, since the chain to it is broken: %s", record.version, err
            )
            num_bytes = _BROKEN
        if before is None:
            return _Since(version, record.version, num_bytes)
        return _Since(before.anchor, record.version, before.num_bytes + num_bytes)

    def _link(self, record: CommitRecord, own_s: float) -> None:
        data = self._archive.get_object("manifest", record.manifest)
        owners = range(len(from_json(Manifest, data).owners))
        end = self._clock() + _FACTOR * own_s + _PATIENCE_S
        closes = [self._await(record, owner, end) for owner in owners]
        anchor = link_anchor(self._site.store, self._archive, record, self._catalogue, closes)
        _log.info("version %d has an anchor of %d bytes", record.version, anchor.num_bytes)

    def _await(self, record: CommitRecord, owner: int, end: float) -> OwnerClose:
        """What rank ``owner`` has written, once it has."""
        while True:
            try:
                return closed_planes(self._site.store, self._site.run, record.attempt, owner)
            except MissingObject:
                if self._clock() > end:
                    raise AttemptFailed(f"rank {owner} has not written its planes in time") from None
                self._pause(_LOOK_AGAIN_S)
