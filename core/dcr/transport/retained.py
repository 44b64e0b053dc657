"""Which anchors a run has, and which versions are not kept any more (DESIGN B5, P1)."""

import logging

from dcr.errors import MissingObject, PayloadError
from dcr.model import RunId, from_json
from dcr.transport.base import Anchor, ObjectStore, Retained
from dcr.transport.keys import ANCHORED, FLOOR, parse_attempt

_log = logging.getLogger(__name__)


def retained(store: ObjectStore, run: RunId) -> Retained:
    """What the store says now; an anchor whose entry is damaged is left out.

    Raises:
        StoreError: the store failed; ask again.
    """
    anchors = [anchor for key in store.list(f"{run}/{ANCHORED}/") if (anchor := _anchor(store, key))]
    anchors.sort(key=lambda anchor: anchor.attempt, reverse=True)
    return Retained(floor(store, run), tuple(anchors))


def floor(store: ObjectStore, run: RunId) -> int:
    """The oldest version that is kept; 0 if nothing was ever pruned."""
    prefix = f"{run}/{FLOOR}/"
    named = [key.removeprefix(prefix) for key in store.list(prefix)]
    return max((int(version) for version in named if version.isdecimal()), default=0)


def _anchor(store: ObjectStore, key: str) -> Anchor | None:
    try:
        anchor = from_json(Anchor, store.get(key))
    except MissingObject:  # pruned since it was listed
        return None
    except PayloadError as err:
        _log.warning("the anchor entry %s is damaged and left out: %s", key, err)
        return None
    return anchor if parse_attempt(key.rpartition("/")[2]) == anchor.attempt else None
