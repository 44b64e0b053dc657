"""Post-apply checks over all written bits (paper section 6.3, DESIGN R13): read, never assumed.

They run after ``synchronize``, so a post-load step that repacks weights is caught too.
"""

from collections.abc import Sequence

import numpy as np
import torch

from dcr.audit import digest_at
from dcr.codec import Item
from dcr.errors import AttemptFailed
from dcr.model import Bits, Catalogue, Encoding, TensorSpec
from dcr.receiver.copy_hook import cast_like
from dcr.receiver.lanes import dense_from_bits, lanes
from dcr.receiver.placement import PlacementTable


def check_items(table: PlacementTable, items: Sequence[Item]) -> None:
    """Re-read every element that ``items`` wrote, in every resident copy.

    Raises:
        AttemptFailed: a destination does not hold the target bits, or an item cannot be checked.
    """
    by_name: dict[str, list[Item]] = {}
    for item in items:
        by_name.setdefault(item.name, []).append(item)
    for name, written in by_name.items():
        spec = table.specs[name]
        if not table.skipped(name):
            _check_stored(table, name, spec, written)
            _check_casts(table, name, spec, written)


def casts_hold(
    table: PlacementTable, name: str, spec: TensorSpec, bits: Bits, active: torch.Tensor
) -> str | None:
    """Resident name of a converting copy that lacks the loader's own cast of ``bits`` where ``active``.

    ``bits`` are flat canonical bits [num_elements]; ``active`` is a flat host mask of them.
    """
    dense = dense_from_bits(spec, bits).reshape(-1)
    for copy in table.copies[name]:
        if not copy.preserving:
            expected = cast_like(copy, copy.source(dense))
            wrong = (lanes(copy.target) != lanes(expected)).cpu() & copy.source(active)
            if bool(wrong.any()):
                return copy.resident
    return None


def _check_stored(table: PlacementTable, name: str, spec: TensorSpec, items: list[Item]) -> None:
    if not any(copy.preserving for copy in table.copies[name]):
        return
    bits, covered = table.read_back(name)
    for item in items:
        if not covered[item.locations].all():
            raise AttemptFailed(
                f"{name}: {int((~covered[item.locations]).sum())} written bits cannot be read back"
            )
        _check_digest(table.catalogue, name, item, bits[item.locations])
    active = _active(spec, items)
    if where := table.disagreeing(name, bits, active):
        raise AttemptFailed(f"{name}: the copy in {where!r} does not hold the bits that were written")


def _check_digest(catalogue: Catalogue, name: str, item: Item, got: Bits) -> None:
    if item.encoding is Encoding.OVERWRITE and not np.array_equal(got, item.values):
        num = int(np.count_nonzero(got != item.values))
        raise AttemptFailed(f"{name}: {num} of {got.size} overwritten elements do not hold the new bits")
    if item.target_digest is None:
        if item.encoding is Encoding.XOR:
            raise AttemptFailed(f"{name}: an XOR item without a target digest cannot be checked")
        return
    digest = digest_at(catalogue.audit_key, item.name, item.locations, got)
    if digest != item.target_digest:
        raise AttemptFailed(
            f"{name}: written bits have the audit digest {digest}, the target is {item.target_digest}; "
            "the resident base was not the committed version, or a write went astray"
        )


def _check_casts(table: PlacementTable, name: str, spec: TensorSpec, items: list[Item]) -> None:
    if all(copy.preserving for copy in table.copies[name]):
        return
    dense = np.zeros(spec.num_elements, dtype=items[0].values.dtype)
    for item in items:
        dense[item.locations] = item.values
    if where := casts_hold(table, name, spec, dense, _active(spec, items)):
        raise AttemptFailed(f"{name}: {where!r} does not hold the cast of the new values")


def _active(spec: TensorSpec, items: list[Item]) -> torch.Tensor:
    active = np.zeros(spec.num_elements, dtype=bool)
    for item in items:
        active[item.locations] = True
    return torch.from_numpy(active)
