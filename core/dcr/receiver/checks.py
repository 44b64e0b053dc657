"""Post-apply checks of everything that was written (paper section 6.3, DESIGN R13): read, never assumed.

They run after ``synchronize``, so a post-load step that repacks weights is caught too. Cost follows the
changes: destinations are re-read at the written positions only, in groups, through the map. What was
learned about one copy is no proof of another: each replica is compared, and a cast is undone.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from dcr.codec import Item
from dcr.errors import AttemptFailed
from dcr.model import Encoding
from dcr.receiver.digester import Digester
from dcr.receiver.rank import ItemKey, PartDigests, Partials
from dcr.receiver.scatter.batch import Readback, Room
from dcr.receiver.scatter.engine import Engine, EngineName, engine_for
from dcr.receiver.scatter.numba_engine import LEAST
from dcr.receiver.scatter.placed import PlacedTensors
from dcr.receiver.shadows import Shadows

Written: TypeAlias = tuple[ItemKey, Item]
_GROUP_ENTRIES = 1 << 20
"""Entries re-read at a time: 10 to 20 bytes of memory each."""
_CACHED_ENTRIES = 1 << 16
"""The same where what was read should not leave the cache before it is digested."""


def check_items(
    written: Sequence[Written],
    *,
    placed: PlacedTensors,
    shadows: Shadows,
    digester: Digester,
    engine: EngineName,
) -> Partials:
    """Re-read every element that the items wrote and digest it, part by part.

    Raises:
        AttemptFailed: two copies differ, or an overwritten element does not hold its bits.
    """
    mapped = [one for one in written if one[1].name in placed]
    chosen = engine_for(engine, placed.plan, sum(item.num_entries for _, item in mapped))
    partials: Partials = {}
    widths: dict[int, list[Written]] = {}
    if chosen.gather is not None:
        for one in mapped:
            if placed.plain(one[1].name):
                widths.setdefault(one[1].values.itemsize, []).append(one)
    for plain in widths.values():
        if sum(item.num_entries for _, item in plain) >= LEAST:
            partials |= _gathered(plain, placed, chosen, digester)
    partials |= _read([one for one in mapped if one[0] not in partials], placed, chosen, digester)
    for key, item in written:
        if item.name in shadows:
            partials[key] = _checked(item, shadows.read(item.name, item.locations), digester)
    return partials


def _gathered(
    written: Sequence[Written], placed: PlacedTensors, engine: Engine, digester: Digester
) -> Partials:
    """Of plain names of one width: without an array for each item, in memory that is used again."""
    partials: Partials = {}
    room = Room()
    for group in _groups(written, _CACHED_ENTRIES):
        found = placed.gather([item for _, item in group], engine, room)
        digests = digester.listed([item.name for _, item in group], found)
        for i, (key, item) in enumerate(group):
            if found.differs[i] >= 0:
                raise _torn(item, placed, found.differs[i])
            if found.wrong[i]:
                held = int(found.ends[i] - found.ends[i - 1]) if i else int(found.ends[0])
                raise _not_written(item, found.wrong[i], held)
            partials[key] = digests[i]
    return partials


def _read(written: Sequence[Written], placed: PlacedTensors, engine: Engine, digester: Digester) -> Partials:
    partials: Partials = {}
    for group in _groups(written, _GROUP_ENTRIES):
        answers = placed.read([(item.name, item.locations) for _, item in group], engine)
        for (key, item), got in zip(group, answers, strict=True):
            if got.differs >= 0:
                raise _torn(item, placed, got.differs)
            partials[key] = _checked(item, got, digester)
    return partials


def _torn(item: Item, placed: PlacedTensors, box: int) -> AttemptFailed:
    where = placed.plan.resident(box)
    return AttemptFailed(f"{item.name}: the copy in {where!r} does not hold what was written")


def _not_written(item: Item, wrong: int, held: int) -> AttemptFailed:
    return AttemptFailed(f"{item.name}: {wrong} of {held} overwritten elements do not hold the new bits")


def _checked(item: Item, got: Readback, digester: Digester) -> PartDigests:
    if item.encoding is Encoding.OVERWRITE and not np.array_equal(
        got.values[got.held], item.values[got.held]
    ):
        wrong = int(np.count_nonzero((got.values != item.values) & got.held))
        raise _not_written(item, wrong, int(got.held.sum()))
    return digester.at(item.name, item.locations, got)


def _groups(written: Sequence[Written], num_most: int) -> Iterator[list[Written]]:
    group: list[Written] = []
    num_entries = 0
    for one in written:
        group.append(one)
        num_entries += one[1].num_entries
        if num_entries >= num_most:
            yield group
            group, num_entries = [], 0
    if group:
        yield group
