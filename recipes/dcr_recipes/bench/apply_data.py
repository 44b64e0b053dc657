"""Two versions of a model and the payloads between them. Shapes: N elements, E changed ones."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from dcr.codec import Item, Payload, decode_payload, encode_payload
from dcr.model import AttemptId, Catalogue, Encoding, TensorSpec
from dcr_recipes.bench.data import Changes, Words, change_of, named_change
from dcr_recipes.bench.payloads import item_of

RUN = "0" * 32
AUDIT_KEY = "00" * 16
BUCKET_BYTES = 512 << 20
"""Source bytes of a payload, as by default (``codec.bucket_mib``)."""
_SEED = 13
_DIGEST = "0" * 32


@dataclass(frozen=True, slots=True)
class Versions:
    """Flat words [N] of both versions by name, what changes between them, and the measured rate."""

    catalogue: Catalogue
    old: dict[str, Words]
    new: dict[str, Words]
    changes: dict[str, Changes]

    @property
    def rate(self) -> float:
        """Measured share of changed elements."""
        return self.num_changed / sum(words.size for words in self.old.values())

    @property
    def num_changed(self) -> int:
        """Changed elements of all tensors."""
        return sum(change.locations.size for change in self.changes.values())

    def old_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Checkpoint tensors of the first version."""
        return self._tensors(self.old)

    def new_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Checkpoint tensors of the second version."""
        return self._tensors(self.new)

    def _tensors(self, words: dict[str, Words]) -> Iterator[tuple[str, torch.Tensor]]:
        for spec in self.catalogue.tensors:
            flat = torch.from_numpy(words[spec.name].view("i2"))
            yield spec.name, flat.view(torch.bfloat16).view(spec.shape)

    def payloads(self, encoding: Encoding) -> list[Payload]:
        """Decoded payloads that lead from the first to the second version."""
        return [payload_of(number, items) for number, items in enumerate(self._buckets(encoding))]

    def _buckets(self, encoding: Encoding) -> Iterator[tuple[Item, ...]]:
        bucket: list[Item] = []
        num_bytes = 0
        for spec in self.catalogue.tensors:
            if self.changes[spec.name].locations.size:
                bucket.append(_item(spec, self.changes[spec.name], encoding))
                num_bytes += spec.num_bytes
            if bucket and num_bytes >= BUCKET_BYTES:
                yield tuple(bucket)
                bucket, num_bytes = [], 0
        if bucket:
            yield tuple(bucket)


def _item(spec: TensorSpec, changes: Changes, encoding: Encoding) -> Item:
    flat = item_of(spec.name, spec.num_elements, changes, encoding)
    return Item(spec.name, spec.shape, spec.dtype, encoding, flat.locations, flat.values)


def payload_of(sequence: int, items: Iterable[Item]) -> Payload:
    """A payload as a receiver has it: encoded and decoded again."""
    data = encode_payload(
        tuple(items),
        attempt=AttemptId(1, 1),
        owner=0,
        sequence=sequence,
        run=RUN,
        parent=0,
        catalogue=_DIGEST,
    )
    return decode_payload(data)


def singly(payloads: Iterable[Payload]) -> list[Payload]:
    """The same items, one a payload."""
    items = (item for payload in payloads for item in payload.items)
    return [payload_of(number, (item,)) for number, item in enumerate(items)]


def make_versions(specs: tuple[TensorSpec, ...], rate: float) -> Versions:
    """Weights, and changes at about ``rate``."""
    change = named_change(rate)[1]
    old: dict[str, Words] = {}
    new: dict[str, Words] = {}
    changes: dict[str, Changes] = {}
    for place, spec in enumerate(specs):
        words, found = change_of(change, (_SEED, place), spec.num_elements)
        old[spec.name], new[spec.name], changes[spec.name] = words, words.copy(), found
        new[spec.name][found.locations] = found.new
    return Versions(Catalogue(RUN, AUDIT_KEY, specs), old, new, changes)
