"""Readers' leases: what somebody is reading is not pruned (DESIGN P1).

A reader first notes what it needs, then looks whether that is still kept; who prunes first announces
what goes, then looks for leases. Whichever comes second sees the other, so no object vanishes under a
reader that knows of it. A reader that dies leaves a lease that runs out.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from dcr.errors import ConfigError, IntegrityError, MissingObject, PayloadError, StoreError
from dcr.model import RunId, from_json, new_nonce, to_json
from dcr.transport.base import ObjectStore
from dcr.transport.keys import READER, reader_key
from dcr.transport.retained import floor

_log = logging.getLogger(__name__)
LEASE_S = 600.0
_MAX_TRIES = 8
SKEW_S = 60.0
"""By how much the clocks of a reader and of who prunes may differ, seconds."""


def wall_clock() -> float:
    """Seconds since 1970: the one clock that processes of several hosts share."""
    return time.time()  # noqa: TID251 -- it is passed in wherever it matters


@dataclass(frozen=True, slots=True)
class Lease:
    """Somebody reads ``version`` or later ones until ``until_s``, seconds since 1970 by its clock."""

    version: int
    until_s: int


@contextmanager
def reading(
    store: ObjectStore,
    run: RunId,
    version: int,
    *,
    lease_s: float = LEASE_S,
    clock: Callable[[], float] = wall_clock,
    covered: Callable[[], bool] = lambda: False,
) -> Iterator[Callable[[], None]]:
    """See ``Archive.reading``. A store that takes no lease, being full or read-only, is read without one.

    ``covered``: whether this process reads that version or an older one already. Then what was announced to
    go since is still there, and stays.

    Raises:
        IntegrityError: ``version`` is not kept.
        StoreError: the store failed; ask again.
    """
    held = _Held(store, run, version, lease_s, clock)
    held.renew()
    try:
        if version < (oldest := floor(store, run)) and not covered():
            raise IntegrityError(f"version {version} is not kept; the oldest is {oldest}")
        yield held.keep
    finally:
        held.end()


def live_leases(store: ObjectStore, run: RunId, *, clock: Callable[[], float] = wall_clock) -> list[Lease]:
    """Leases that have not run out; those that have are removed, damaged ones too.

    Raises:
        StoreError: the store failed; ask again.
    """
    for _ in range(_MAX_TRIES):
        if (found := _listed(store, run, clock)) is not None:
            return found
    raise StoreError("readers' leases vanish while they are read; look again later")


def _listed(store: ObjectStore, run: RunId, clock: Callable[[], float]) -> list[Lease] | None:
    """As ``live_leases``; None if one went meanwhile, since its renewal may be younger than the listing."""
    found = []
    for key in store.list(f"{run}/{READER}/"):
        try:
            lease = from_json(Lease, store.get(key))
        except MissingObject:
            return None
        except PayloadError as err:
            _log.warning("the reader's lease %s is damaged and does not count: %s", key, err)
            store.delete(key)
            continue
        if clock() <= lease.until_s + SKEW_S:
            found.append(lease)
        else:
            store.delete(key)
    return found


class _Held:
    """One reader's lease, written anew under another name whenever half of it is over.

    If that fails, it is tried again after a tenth of it: several times before the old one runs out.
    """

    def __init__(
        self, store: ObjectStore, run: RunId, version: int, lease_s: float, clock: Callable[[], float]
    ) -> None:
        self._store, self._run, self._version = store, run, version
        self._lease_s, self._clock = lease_s, clock
        self._due_at = 0.0
        self._key = ""

    def keep(self) -> None:
        if self._clock() > self._due_at:
            self.renew()

    def renew(self) -> None:
        before, now = self._key, self._clock()
        key = reader_key(self._run, new_nonce())
        lease = Lease(self._version, int(now + self._lease_s) + 1)
        try:
            self._store.put(key, to_json(lease))
        except (ConfigError, StoreError) as err:  # wrong credentials are a mistake of the configuration
            _log.warning("version %d is read without a lease, pruning may end it: %s", self._version, err)
            self._due_at = self._clock() + self._lease_s / 10
            return
        self._key, self._due_at = key, now + self._lease_s / 2
        self._remove(before)

    def end(self) -> None:
        self._remove(self._key)

    def _remove(self, key: str) -> None:
        if key:
            with suppress(StoreError):  # it runs out by itself
                self._store.delete(key)
