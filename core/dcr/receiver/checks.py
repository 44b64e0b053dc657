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
from dcr.receiver.scatter.batch import Readback
from dcr.receiver.scatter.engine import EngineName, engine_for
from dcr.receiver.scatter.placed import PlacedTensors
from dcr.receiver.shadows import Shadows

Written: TypeAlias = tuple[ItemKey, Item]
_GROUP_ENTRIES = 1 << 20
"""Entries re-read at a time: 10 to 20 bytes of memory each."""


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
    partials: Partials = {}
    for group in _groups([one for one in written if one[1].name in placed]):
        chosen = engine_for(engine, placed.plan, sum(item.num_entries for _, item in group))
        answers = placed.read([(item.name, item.locations) for _, item in group], chosen)
        for (key, item), got in zip(group, answers, strict=True):
            if got.differs >= 0:
                where = placed.plan.resident(got.differs)
                raise AttemptFailed(f"{item.name}: the copy in {where!r} does not hold what was written")
            partials[key] = _checked(item, got, digester)
    for key, item in written:
        if item.name in shadows:
            partials[key] = _checked(item, shadows.read(item.name, item.locations), digester)
    return partials


def _checked(item: Item, got: Readback, digester: Digester) -> PartDigests:
    if item.encoding is Encoding.OVERWRITE and not np.array_equal(
        got.values[got.held], item.values[got.held]
    ):
        wrong = int(np.count_nonzero((got.values != item.values) & got.held))
        raise AttemptFailed(
            f"{item.name}: {wrong} of {int(got.held.sum())} overwritten elements do not hold the new bits"
        )
    return digester.at(item.name, item.locations, got)


def _groups(written: Sequence[Written]) -> Iterator[list[Written]]:
    group: list[Written] = []
    num_entries = 0
    for one in written:
        group.append(one)
        num_entries += one[1].num_entries
        if num_entries >= _GROUP_ENTRIES:
            yield group
            group, num_entries = [], 0
    if group:
        yield group
