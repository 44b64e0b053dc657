"""Collection of what failed attempts left in the store (DESIGN P1)."""

from collections.abc import Collection, Iterable

from dcr.model import AttemptId, Manifest, RunId
from dcr.transport.base import ObjectStore, Sweepable
from dcr.transport.keys import CLOSE, PAYLOAD, check_segment, parse_attempt, payload_key


def named_earlier(manifests: Iterable[Manifest]) -> set[str]:
    """Keys of the payloads that ``manifests`` name and that lie under attempts before their own (P6)."""
    return {
        payload_key(manifest.run, ref.attempt, ref.owner, ref.sequence)
        for manifest in manifests
        for ref in manifest.payloads
        if ref.attempt is not None
    }


def collect_attempts(
    store: ObjectStore, run: RunId, keep: Collection[AttemptId], named: Collection[str] = ()
) -> list[str]:
    """Delete payloads and closed lists of ``run``'s attempts that are not in ``keep``; return their keys.

    ``named``: keys of earlier attempts' payloads that the chain names (``named_earlier``); they stay.

    ``keep`` must hold the attempts of the whole chain behind the record (``dcr.transport.chain``)
    and the active one. Attempts later than all of these stay: they may have been prepared since
    the caller looked. So does what has the number of the latest: a delta composed up to its version,
    which a receiver may be taking (``dcr.transport.depot``). Keys that are not of an attempt of this run
    are never touched. Idempotent; may be interrupted anywhere.

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
            if attempt is None or attempt in keep or key in named:
                continue
            if attempt.number < latest:
                store.delete(key)
                deleted.append(key)
    return deleted


def collect_between(
    store: ObjectStore, run: RunId, older: AttemptId, newer: AttemptId, *, named: Collection[str] = ()
) -> list[str]:
    """Delete what the failed attempts between two committed ones, of successive versions, left.

    All of them were made for ``newer``'s version and are fenced. What the committed manifest names of it
    (``named_earlier``) stays. Return the deleted keys. Idempotent; may be interrupted anywhere.

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
                if key not in named:
                    store.delete(key)
                    deleted.append(key)
            if isinstance(store, Sweepable):
                store.sweep(prefix)
    return deleted
