"""Audit tables of versions, from the partial digests in their owners' closed lists (DESIGN B6)."""

from collections.abc import Iterable

from dcr.audit import EMPTY, combine
from dcr.errors import IntegrityError
from dcr.model import AuditTable, Catalogue, OwnerClose


def joined_audit(catalogue: Catalogue, closes: Iterable[OwnerClose]) -> AuditTable:
    """Digest of every whole tensor from the owners' partial sums.

    Raises:
        IntegrityError: the parts do not cover a tensor exactly once, or name an unknown one.
    """
    expected = {name: spec.num_elements for name, spec in catalogue.by_name().items()}
    table = dict.fromkeys(expected, EMPTY)
    for close in closes:
        for name, part in close.audit.items():
            if name not in table:
                raise IntegrityError(f"owner-{close.owner} audits {name!r}, which the catalogue lacks")
            table[name] = combine(table[name], part)
    for name, digest in table.items():
        if digest.count != expected[name]:
            raise IntegrityError(f"{name!r}: owners cover {digest.count} of {expected[name]} elements")
    return table
