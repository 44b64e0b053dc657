"""A committed chain made by hand from dense tensors: the oracle for replay, logs and exports.

It writes what owners and the coordinator would have written, with none of their code: the
expected bits of every version are simply the dense tensors that it was given.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dcr.audit import digest_tensor
from dcr.codec import Item, encode_payload, payload_digest
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
    TensorSpec,
    bits_dtype,
    to_json,
)
from dcr.transport.archive import StoreArchive
from dcr.transport.base import Anchor, ObjectStore, Outlet
from dcr.transport.object_transport import ObjectTransport
from dcr.transport.planes import PlanesOutlet, link_anchor

Tensors: TypeAlias = dict[str, NDArray[np.unsignedinteger[Any]]]


@dataclass(slots=True)
class History:
    """Version n is ``tensors[n]`` (flat bits by primary name) under ``records[n]``; attempts leave gaps.

    ``audits``: closed lists prove their version, as those of real owners do (the first one's for all).
    """

    store: ObjectStore
    catalogue: Catalogue
    num_owners: int = 2
    audits: bool = False
    tensors: list[Tensors] = field(default_factory=list)
    records: list[CommitRecord] = field(default_factory=list)
    manifests: list[Manifest] = field(default_factory=list)

    @property
    def archive(self) -> StoreArchive:
        """The run's archive."""
        return StoreArchive(self.store, self.catalogue.run)

    def commit(self, tensors: Mapping[str, NDArray[Any]], *, encoding: Encoding) -> CommitRecord:
        """Publish and commit the next version; the first one is the anchor, all overwrites."""
        version = len(self.records)
        attempt = AttemptId(version=version, number=3 * version) if version else GENESIS
        encoding = encoding if version else Encoding.OVERWRITE
        closes = tuple(self._publish(attempt, tensors, owner, encoding) for owner in range(self.num_owners))
        manifest = Manifest(
            run=self.catalogue.run,
            attempt=attempt,
            parent_version=version - 1,
            parent=(self.records[-1].attempt, self.records[-1].manifest) if version else None,
            catalogue=self.catalogue.digest(),
            overwrite_only=encoding is Encoding.OVERWRITE,
            owners=closes,
        )
        self.tensors.append({name: bits.copy() for name, bits in tensors.items()})
        return self.record(manifest, self._audit(tensors))

    def anchor(self, version: int) -> Anchor:
        """Give ``version`` all of its planes, as its owners would have; needs ``audits``."""
        record, tensors = self.records[version], self.tensors[version]
        outlet, closes = PlanesOutlet(self.store, self.catalogue.run), []
        for owner in range(self.num_owners):
            items = self._items(None, tensors, owner, Encoding.OVERWRITE, tied=False)
            audit = self._audit(tensors) if owner == 0 else {}
            close = self._send(outlet, record.attempt, owner, items, audit=audit, parent=-1)
            closes.append(close)
        return link_anchor(self.store, self.archive, record, self.catalogue, closes)

    def record(self, manifest: Manifest, audit: AuditTable) -> CommitRecord:
        """Commit any manifest and audit table, also ones that are wrong."""
        record = CommitRecord(
            run=self.catalogue.run,
            version=manifest.attempt.version,
            attempt=manifest.attempt,
            epoch=1,
            writer="0" * 16,
            parent=manifest.parent[0] if manifest.parent else None,
            step=manifest.attempt.version,
            catalogue=self.catalogue.digest(),
            manifest=self.archive.put_object("manifest", to_json(manifest)),
            audit=self.archive.put_object("audit", to_json(audit)),
        )
        self.records.append(record)
        self.manifests.append(manifest)
        return record

    def _audit(self, tensors: Mapping[str, NDArray[Any]]) -> AuditTable:
        return {
            name: digest_tensor(self.catalogue.audit_key, name, tensors[spec.name])
            for spec in self.catalogue.tensors
            for name in (spec.name, *spec.aliases)
        }

    def _publish(
        self, attempt: AttemptId, tensors: Mapping[str, NDArray[Any]], owner: int, encoding: Encoding
    ) -> OwnerClose:
        """One payload for each item; tensors are dealt to owners element by element."""
        items = self._items(self.tensors[-1] if self.tensors else None, tensors, owner, encoding)
        audit = self._audit(tensors) if self.audits and owner == 0 else {}
        outlet = ObjectTransport(self.store, self.catalogue.run)
        return self._send(outlet, attempt, owner, items, audit=audit, parent=attempt.version - 1)

    def _send(
        self,
        outlet: Outlet,
        attempt: AttemptId,
        owner: int,
        items: Iterator[Item],
        *,
        audit: AuditTable,
        parent: int,
    ) -> OwnerClose:
        refs = []
        for sequence, item in enumerate(items):
            data = encode_payload(
                [item],
                attempt=attempt,
                owner=owner,
                sequence=sequence,
                run=self.catalogue.run,
                parent=parent,
                catalogue=self.catalogue.digest(),
            )
            ref = PayloadRef(owner, sequence, payload_digest(data), len(data))
            outlet.publish(attempt, ref, data)
            refs.append(ref)
        close = OwnerClose(attempt, owner, tuple(refs), audit, 0, 0, "")
        outlet.close(close)
        return close

    def _items(
        self,
        before: Tensors | None,
        after: Mapping[str, NDArray[Any]],
        owner: int,
        encoding: Encoding,
        *,
        tied: bool = True,
    ) -> Iterator[Item]:
        for spec in self.catalogue.tensors:
            old, new = before[spec.name] if before else None, after[spec.name]
            owned = np.arange(owner, spec.num_elements, self.num_owners, dtype=np.int64)
            where = owned if old is None else owned[old[owned] != new[owned]]
            words = new.itemsize == 2
            fitting = Encoding.XOR if encoding is Encoding.DELTA16 and not words else encoding
            values = new[where] if old is None else _values(fitting, old[where], new[where])
            for name in (spec.name, *(spec.aliases if tied else ())):
                yield Item(name, spec.shape, spec.dtype, fitting, where, values)


def _values(encoding: Encoding, old: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    found: NDArray[Any] = {Encoding.XOR: old ^ new, Encoding.DELTA16: new - old, Encoding.OVERWRITE: new}[
        encoding
    ]
    return found


def small_catalogue(run: str = "ab" * 16) -> Catalogue:
    """Tied names, a scalar, an empty tensor and every width of element."""
    return Catalogue(
        run=run,
        audit_key="cd" * 16,
        tensors=(
            TensorSpec("embed", (5, 3), "bfloat16", aliases=("head",)),
            TensorSpec("norm", (4,), "float32"),
            TensorSpec("scale", (), "int64"),
            TensorSpec("mask", (7,), "bool"),
            TensorSpec("none", (0, 4), "float16"),
        ),
    )


def random_tensors(catalogue: Catalogue, rng: np.random.Generator) -> Tensors:
    """Uniformly random stored bits of every tensor, flat, by primary name."""
    return {
        spec.name: rng.integers(0, 256, spec.num_bytes, np.uint8).view(bits_dtype(spec.dtype))
        for spec in catalogue.tensors
    }
