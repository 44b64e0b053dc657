"""Proof that weights are what a version's audit table says, without the bytes of that version (DESIGN B6)."""

from typing import TYPE_CHECKING

from dcr.audit import digest_tensor
from dcr.errors import IntegrityError
from dcr.model import AuditTable, stored_bits

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


def require_served(dense: "Mapping[str, torch.Tensor]", table: AuditTable, audit_key: str) -> None:
    """Compare ``dense`` (served dtype, by canonical name) with the committed ``table``.

    Names of the table that ``dense`` lacks are aliases of tied tensors, which have the same bits.

    Raises:
        IntegrityError: a tensor has other bits, or is not in the table.
    """
    wrong = [
        name
        for name in sorted(dense)
        if digest_tensor(audit_key, name, stored_bits(dense[name])) != table.get(name)
    ]
    if wrong or not dense:
        raise IntegrityError(f"{len(wrong)} of {len(dense)} tensors are not as committed: {wrong[:3]}")
