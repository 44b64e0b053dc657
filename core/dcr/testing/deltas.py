"""Random versions of a catalogue and the exact items that lead from one to the next."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from dcr.audit import digest_at, digest_tensor
from dcr.codec import Item, Payload, decode_payload, encode_payload
from dcr.model import (
    AttemptId,
    AuditTable,
    Bits,
    Catalogue,
    Classification,
    Encoding,
    PathClass,
    TensorSpec,
    bits_dtype,
    width_bytes,
)
from dcr.transport.values import differences

Version: TypeAlias = dict[str, Bits]
"""Flat stored bits [num_elements] by primary name."""

FIRST = AttemptId(number=1, version=1)


def random_bits(spec: TensorSpec, rng: np.random.Generator) -> Bits:
    """Uniform stored bits [num_elements]: NaN, infinities, subnormals, both zeros too; bools are 0 or 1."""
    width = bits_dtype(spec.dtype)
    high = 2 if spec.dtype == "bool" else 1 << (8 * width.itemsize)
    return rng.integers(0, high, spec.num_elements, dtype=width.type, endpoint=False)


def random_version(catalogue: Catalogue, rng: np.random.Generator) -> Version:
    """Every tensor at random."""
    return {spec.name: random_bits(spec, rng) for spec in catalogue.tensors}


def changed_version(catalogue: Catalogue, old: Version, rng: np.random.Generator, rate: float) -> Version:
    """``old`` with about ``rate`` of the elements redrawn."""
    new = {}
    for spec in catalogue.tensors:
        redraw = rng.random(spec.num_elements) < rate
        new[spec.name] = np.where(redraw, random_bits(spec, rng), old[spec.name])
    return new


def delta_item(
    key: str, spec: TensorSpec, encoding: Encoding, old: Bits, new: Bits, *, name: str = ""
) -> Item:
    """What an owner of the whole tensor [num_elements] would send, under a tied ``name`` if given."""
    name = name or spec.name
    at = np.flatnonzero(old != new).astype(np.int64)
    values = differences(encoding, old[at], new[at])
    digest = digest_at(key, name, at, new[at])
    return Item(name, spec.shape, spec.dtype, encoding, at, values, digest)


def delta_items(
    catalogue: Catalogue,
    old: Version,
    new: Version,
    classes: Classification | None = None,
    *,
    difference: Encoding = Encoding.XOR,
) -> list[Item]:
    """One item for each changed tensor and tied name: ``difference`` where ``classes`` allows it.

    Else overwrites; XOR in place of DELTA16 where the type does not have 2 bytes.
    """
    items = []
    for spec in catalogue.tensors:
        narrow = difference is Encoding.DELTA16 and width_bytes(spec.dtype) != 2
        kind = Encoding.XOR if narrow else difference
        for name in (spec.name, *spec.aliases):
            allowed = classes is not None and classes.get(name) is PathClass.XOR
            encoding = kind if allowed else Encoding.OVERWRITE
            before, after = old[spec.name], new[spec.name]
            item = delta_item(catalogue.audit_key, spec, encoding, before, after, name=name)
            if item.num_entries:
                items.append(item)
    return items


def payload_of(
    catalogue: Catalogue, items: Sequence[Item], attempt: AttemptId = FIRST, parent: int = 0
) -> Payload:
    """The items after a trip over the wire, as payload 0 of owner 0."""
    data = encode_payload(
        items,
        attempt=attempt,
        owner=0,
        sequence=0,
        run=catalogue.run,
        parent=parent,
        catalogue=catalogue.digest(),
    )
    return decode_payload(data)


def audit_of(catalogue: Catalogue, version: Mapping[str, Bits]) -> AuditTable:
    """The audit table of a version, tied names under their own names."""
    return {
        name: digest_tensor(catalogue.audit_key, name, version[spec.name])
        for spec in catalogue.tensors
        for name in (spec.name, *spec.aliases)
    }
