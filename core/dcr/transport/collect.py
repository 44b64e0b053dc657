"""Collection of what failed attempts left in the store (DESIGN P1)."""

from collections.abc import Collection

from dcr.model import AttemptId, RunId
from dcr.transport.base import ObjectStore, Sweepable
from dcr.transport.keys import CLOSE, PAYLOAD, check_segment, parse_attempt


def collect_attempts(store: ObjectStore, run: RunId, keep: Collection[AttemptId]) -> list[str]:
    """Delete payloads and closed lists of ``run``'s attempts that are not in ``keep``; return their keys.

    ``keep`` must hold the attempts of the whole chain behind the record (``dcr.transport.chain``)
    and the active one. Attempts later than all of these stay: they may have been prepared since
    the caller looked. Keys that are not of an attempt of this run are never touched. Idempotent;
    may be interrupted anywhere.

    Raises:
        StoreError: the store failed; call again.
    """
    check_segment(run, "run id")
    latest = max((attempt.number for attempt in keep), default=-1)
    deleted = []
    for kind in (PAYLOAD, CLOSE):
        prefix = f"{run}/{kind}/"
        for key in store.list(prefix):
            attempt = parse_attempt(key.removeprefix(prefix).partition("/")[0])
            if attempt is not None and attempt not in keep and attempt.number <= latest:
                store.delete(key)
                deleted.append(key)
    return deleted


def collect_between(store: ObjectStore, run: RunId, older: AttemptId, newer: AttemptId) -> list[str]:
    """Delete what the failed attempts between two committed ones, of successive versions, left.

    All of them were made for ``newer``'s version and are fenced; nothing names what they stored. Return
    the deleted keys. Idempotent; may be interrupted anywhere.

    Raises:
        StoreError: the store failed; call again.
    """
    check_segment(run, "run id")
    deleted = []
    for number in range(older.number + 1, newer.number):
        attempt = AttemptId(version=newer.version, number=number)
        for kind in (PAYLOAD, CLOSE):
            prefix = f"{run}/{kind}/{attempt}/"
            for key in store.list(prefix):
                store.delete(key)
                deleted.append(key)
            if isinstance(store, Sweepable):
                store.sweep(prefix)
    return deleted
