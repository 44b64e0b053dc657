"""Post-apply checks of everything that was written (paper section 6.3, DESIGN R13): read, never assumed.

They run after ``synchronize``, so a post-load step that repacks weights is caught too. Cost follows the
changes: destinations are re-read at the written positions only, in groups, through the map. What was
learned about one copy is no proof of another: each replica is compared, and a cast is undone.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.codec import Item
from dcr.errors import AttemptFailed
from dcr.model import Encoding
from dcr.receiver.digester import Digester
from dcr.receiver.intake import Taken
from dcr.receiver.rank import ItemKey, Method, PartDigests, Partials
from dcr.receiver.scatter.batch import Listed, Readback, Room
from dcr.receiver.scatter.engine import Engine, EngineName, engine_for
from dcr.receiver.scatter.numba_engine import records_of
from dcr.receiver.scatter.placed import PlacedTensors
from dcr.receiver.shadows import Shadows

Written: TypeAlias = tuple[ItemKey, Item]
"""An item with its key."""

_GROUP_ENTRIES = 1 << 20
"""Entries re-read at a time: 10 to 20 bytes of memory each."""
_CACHED_ENTRIES = 1 << 16
"""The same where what was read should not leave the cache before it is digested."""


def check_items(
    written: Sequence[Taken],
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
    partials: Partials = {}
    num_entries = sum(int(taken.columns.nums[~taken.going(Method.NONE)].sum()) for taken in written)
    chosen = engine_for(engine, placed.plan, num_entries)
    for taken in written if chosen.gather is not None else ():
        partials |= _gathered(taken, placed, chosen, digester)
    rest = [one for taken in written for one in taken.held(partials)]
    partials |= _read([one for one in rest if one[1].name in placed], placed, chosen, digester)
    for key, item in rest:
        if item.name in shadows:
            partials[key] = _checked(item, shadows.read(item.name, item.positions), digester)
    return partials


def _gathered(taken: Taken, placed: PlacedTensors, engine: Engine, digester: Digester) -> Partials:
    """Of plain items, width by width: without an array for each item, in memory that is used again."""
    assert engine.gather is not None, "asked of engines that can"
    partials: Partials = {}
    room = Room()
    for widths, plain in taken.plain():
        records = records_of(taken.columns, taken.rows, taken.looks, plain)
        for start, stop in _bounds(taken.columns.nums[plain]):
            found = engine.gather(placed.plan, records[start:stop], widths, room)
            group = plain[start:stop].tolist()
            _require_sound(taken, group, placed, found)
            digests = digester.listed([taken.columns.keys[i][0] for i in group], found)
            partials |= {taken.key(i): digest for i, digest in zip(group, digests, strict=True)}
    return partials


def _bounds(nums: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Runs of items (first, one past the last) of so many entries that they stay in the cache."""
    last = np.unique((np.cumsum(nums) - 1) // _CACHED_ENTRIES, return_index=True)[1]
    return pairwise([*last.tolist(), nums.size])


def _require_sound(taken: Taken, group: list[int], placed: PlacedTensors, found: Listed) -> None:
    ends = found.ends.tolist()
    for n, (i, differs, wrong) in enumerate(zip(group, found.differs, found.wrong, strict=True)):
        if differs >= 0:
            raise _torn(taken.payload.items[i], placed, differs)
        if wrong:
            raise _not_written(taken.payload.items[i], wrong, ends[n] - (ends[n - 1] if n else 0))


def _read(written: Sequence[Written], placed: PlacedTensors, engine: Engine, digester: Digester) -> Partials:
    partials: Partials = {}
    for group in _groups(written, _GROUP_ENTRIES):
        answers = placed.read([(item.name, item.positions) for _, item in group], engine)
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
