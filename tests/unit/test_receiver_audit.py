"""What a live receiver says of its own bits."""

import pytest
from tests.unit.receiver_sites import Site, tau

from dcr.errors import AttemptFailed, IntegrityError
from dcr.model import AuditTable
from dcr.receiver.lanes import lanes
from dcr.testing.deltas import audit_of


@pytest.fixture
def site() -> Site:
    made = Site()
    made.join()
    return made


def _committed(site: Site, version: int = 0) -> AuditTable:
    return audit_of(site.catalogue, site.versions[version])


def test_a_clean_receiver_proves_the_record(site: Site) -> None:
    audit = site.agent.audit()
    assert (audit.receiver, audit.version, audit.attempt) == ("runtime-0", 0, site.records[0].attempt)
    assert audit.catalogue == site.catalogue.digest()
    assert audit.table
    assert audit.table.items() <= _committed(site).items()


def test_every_flipped_bit_is_found_and_named(site: Site) -> None:
    committed = _committed(site)
    named = set()
    for resident in site.runtime.resident().values():
        if resident.numel() == 0:
            continue
        bits = lanes(resident).reshape(-1)
        bits[0] ^= 1
        try:
            table = site.agent.audit().table
            named |= {name for name, digest in table.items() if digest != committed[name]}
        except IntegrityError as err:  # a tensor with two resident copies, which now differ
            named.add(str(err).split(":")[0])
        bits[0] ^= 1
    assert named
    assert named <= set(committed)
    assert site.agent.audit().table.items() <= committed.items()


def test_a_receiver_in_transition_is_not_audited(site: Site) -> None:
    site.agent.fence(tau(1, 2), site.records[0])
    assert site.agent.audit().version == 0
    site.agent.open_apply(tau(1, 2), site.records[0])
    with pytest.raises(AttemptFailed, match="mixed"):
        site.agent.audit()


def test_an_empty_receiver_is_not_audited() -> None:
    with pytest.raises(AttemptFailed, match="empty"):
        Site().agent.audit()
