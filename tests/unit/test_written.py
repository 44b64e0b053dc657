"""What was written is kept until it is checked: decoded up to a bound, beyond that as it was sent."""

from typing import Any

import pytest
from tests.unit.receiver_sites import Site, opened

from dcr.errors import AttemptFailed
from dcr.receiver.written import Written


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join()
    return made


def held(site: Site) -> Written:
    """Of the site's only rank."""
    applier: Any = site.agent._applier
    found = applier._ranks[0]._written
    assert isinstance(found, Written)
    return found


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_a_check_does_not_depend_on_how_it_was_kept(
    site: Site, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    attempt, refs = opened(site, 1, 2)
    kept = held(site)
    monkeypatch.setattr(kept, "_most_bytes", most)
    assert site.agent.pump() == len(refs)
    assert (len(kept._sent), len(kept._decoded)) == ((len(refs), 0) if most == 0 else (0, len(refs)))
    site.agent.finish(attempt, site.manifest(attempt, refs))
    assert site.holds(1)
    assert (kept._sent, kept._decoded) == ([], [])


@pytest.mark.parametrize("most", [0, 1 << 30])
def test_a_write_that_went_astray_is_found_either_way(
    site: Site, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    attempt, refs = opened(site, 1, 2)
    monkeypatch.setattr(held(site), "_most_bytes", most)
    site.agent.pump()
    site.runtime.data("qk").view(-1)[:].add_(1.0)
    with pytest.raises(AttemptFailed, match="tiny"):
        site.agent.finish(attempt, site.manifest(attempt, refs))


def test_what_is_decoded_stays_below_the_bound(site: Site) -> None:
    attempt, refs = opened(site, 1, 2)
    site.agent.pump()
    kept = held(site)
    sizes = [
        sum(item.positions.nbytes + item.values.nbytes for item in taken.payload.items)
        for taken in kept._decoded
    ]
    bounded = Written(kept._limits, sum(sizes) - 1)
    for taken in kept._decoded:
        bounded.add(taken, allow_xor=True)
    assert len(bounded._sent) == 1, "the last one no longer fits"
    assert bounded._num_bytes == sum(sizes[:-1])
    del attempt, refs
