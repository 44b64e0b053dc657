"""A committed chain of a model that trains: versions, retries in between, an anchor. Shapes: N elements."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod

import numpy as np

from dcr.audit import digest_tensor, update
from dcr.codec import Item, encode_payload, stated_digest
from dcr.model import (
    GENESIS,
    AttemptId,
    AuditTable,
    Catalogue,
    CommitRecord,
    Encoding,
    Manifest,
    OwnerClose,
    PayloadRef,
    to_json,
)
from dcr.transport.archive import StoreArchive
from dcr.transport.base import ObjectStore, Outlet
from dcr.transport.object_transport import ObjectTransport
from dcr.transport.planes import PlanesOutlet, link_anchor
from dcr_recipes.bench.data import AdamW, Changes, Float32, Words, chunks, to_bfloat16, weights
from dcr_recipes.bench.payloads import item_of

RETRY_EVERY = 10
"""One version in so many is an overwrite retry, as after an attempt that failed."""
_PAYLOAD_ELEMENTS = 16 << 20
"""A payload ends with the tensor that brings it to so many elements: 32 MiB of source."""
_SEED = 17


@dataclass(slots=True)
class Chain:
    """One owner's versions in ``store``: AdamW on FP32 masters [N], a step changes ``rate`` of the bits."""

    store: ObjectStore
    catalogue: Catalogue
    rate: float
    records: list[CommitRecord] = field(default_factory=list)
    num_changed: list[int] = field(default_factory=list)
    _masters: dict[str, Float32] = field(default_factory=dict)
    _audit: AuditTable = field(default_factory=dict)

    @property
    def archive(self) -> StoreArchive:
        """The run's archive."""
        return StoreArchive(self.store, self.catalogue.run)

    def grow(self, num_versions: int, *, anchor_at: int, advance: Callable[[int], None]) -> None:
        """Commit versions 0 to ``num_versions``; ``anchor_at`` one of them gets planes of its own."""
        self._begin()
        change = AdamW(self.rate)
        for version in range(1, num_versions + 1):
            encoding = Encoding.OVERWRITE if version % RETRY_EVERY == 0 else Encoding.DELTA16
            advance(version)
            self._commit(version, self._step(change, version, encoding), encoding)
            if version == anchor_at:
                self._anchor()

    def words(self) -> Iterator[tuple[str, Words]]:
        """Stored bits of the last version."""
        return ((name, to_bfloat16(master)) for name, master in self._masters.items())

    def _begin(self) -> None:
        for place, spec in enumerate(self.catalogue.tensors):
            self._masters[spec.name] = master = np.empty(spec.num_elements, np.float32)
            for start, end in chunks(spec.num_elements):
                master[start:end] = weights(np.random.default_rng((_SEED, place, start)), end - start)
        for name, words in self.words():
            self._audit[name] = digest_tensor(self.catalogue.audit_key, name, words)
        self._commit(0, self._planes(), Encoding.OVERWRITE)

    def _planes(self) -> Iterator[Item]:
        specs = self.catalogue.by_name()
        for name, words in self.words():
            yield Item(name, specs[name].shape, "bfloat16", Encoding.OVERWRITE, np.arange(words.size), words)

    def _step(self, change: AdamW, version: int, encoding: Encoding) -> Iterator[Item]:
        for place, spec in enumerate(self.catalogue.tensors):
            rng = np.random.default_rng((_SEED, version, place))
            changes = change.advance(rng, self._masters[spec.name])
            self._digest(spec.name, changes)
            flat = item_of(spec.name, spec.num_elements, changes, encoding)
            yield Item(spec.name, spec.shape, spec.dtype, encoding, flat.locations, flat.values)

    def _digest(self, name: str, changes: Changes) -> None:
        key = self.catalogue.audit_key
        self._audit[name] = update(self._audit[name], key, name, changes.locations, changes.old, changes.new)

    def _commit(self, version: int, items: Iterable[Item], encoding: Encoding) -> None:
        attempt = AttemptId(number=2 * version, version=version) if version else GENESIS
        parent = self.records[-1] if self.records else None
        outlet = ObjectTransport(self.store, self.catalogue.run)
        close = self._publish(outlet, attempt, version - 1, items)
        self.num_changed.append(close.num_changed)
        manifest = Manifest(
            run=self.catalogue.run,
            attempt=attempt,
            parent_version=version - 1,
            parent=(parent.attempt, parent.manifest) if parent else None,
            catalogue=self.catalogue.digest(),
            overwrite_only=encoding is Encoding.OVERWRITE,
            owners=(close,),
        )
        self.records.append(
            CommitRecord(
                self.catalogue.run, version, attempt, 1, "0" * 16, parent.attempt if parent else None,
                version, self.catalogue.digest(), self.archive.put_object("manifest", to_json(manifest)),
                self.archive.put_object("audit", to_json(self._audit)),
            )
        )  # fmt: skip

    def _anchor(self) -> None:
        record = self.records[-1]
        outlet = PlanesOutlet(self.store, self.catalogue.run)
        close = self._publish(outlet, record.attempt, -1, self._planes())
        link_anchor(self.store, self.archive, record, self.catalogue, [close])

    def _publish(self, outlet: Outlet, attempt: AttemptId, parent: int, items: Iterable[Item]) -> OwnerClose:
        refs, num_changed = list[PayloadRef](), 0
        for sequence, group in enumerate(_groups(items)):
            data = encode_payload(
                group,
                attempt=attempt,
                owner=0,
                sequence=sequence,
                run=self.catalogue.run,
                parent=parent,
                catalogue=self.catalogue.digest(),
            )
            refs.append(PayloadRef(0, sequence, stated_digest(data), len(data)))
            outlet.publish(attempt, refs[-1], data)
            num_changed += sum(item.num_entries for item in group)
        num_elements = sum(spec.num_elements for spec in self.catalogue.tensors)
        close = OwnerClose(attempt, 0, tuple(refs), dict(self._audit), num_changed, num_elements, "")
        outlet.close(close)
        return close


def _groups(items: Iterable[Item]) -> Iterator[list[Item]]:
    """What goes into each payload; one is made at a time."""
    group, num_elements = list[Item](), 0
    for item in items:
        group.append(item)
        num_elements += prod(item.shape)
        if num_elements >= _PAYLOAD_ELEMENTS:
            yield group
            group, num_elements = [], 0
    if group:
        yield group
