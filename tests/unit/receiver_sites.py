"""One receiver over the toy runtime and a store in memory, and what the trainer's side puts there."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dcr.codec import Item, encode_payload, payload_digest
from dcr.model import (
    GENESIS,
    AttemptId,
    Catalogue,
    CommitRecord,
    Manifest,
    OwnerClose,
    PayloadRef,
    to_json,
)
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.local import local_writer
from dcr.testing.deltas import Version, audit_of, changed_version, delta_items, random_version
from dcr.testing.native_loader_suite import dense_load, storage_bytes
from dcr.testing.toy_runtime import RecordingGate, ToyRuntime
from dcr.transport.archive import StoreArchive
from dcr.transport.keys import payload_key
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport


@dataclass
class Site:
    """One receiver and the trainer's side of its store; version n is ``versions[n]``."""

    runtime: ToyRuntime = field(default_factory=lambda: ToyRuntime(tiny=True))
    store: MemoryStore = field(default_factory=MemoryStore)
    gate: RecordingGate = field(default_factory=RecordingGate)
    versions: list[Version] = field(default_factory=list)
    records: list[CommitRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(5)
        self.versions.append(random_version(self.catalogue, rng))
        for _ in range(3):
            self.versions.append(changed_version(self.catalogue, self.versions[-1], rng, 0.7))
        self.agent = self.start()
        nothing = {name: ~bits for name, bits in self.versions[0].items()}  # so that every element is sent
        self.commit(GENESIS, self.publish(GENESIS, delta_items(self.catalogue, nothing, self.versions[0])))

    @property
    def catalogue(self) -> Catalogue:
        return self.runtime.catalogue

    @property
    def archive(self) -> StoreArchive:
        return StoreArchive(self.store, self.catalogue.run)

    def start(self) -> ReceiverAgent:
        return ReceiverAgent(
            "runtime-0",
            local_writer(self.runtime, self.catalogue),
            self.gate,
            transport=ObjectTransport(self.store, self.catalogue.run),
            archive=self.archive,
            catalogue=self.catalogue,
            incarnation="i",
        )

    def items(self, version: int, *, overwrite: bool = False) -> list[Item]:
        classes = None if overwrite else local_writer(ToyRuntime(tiny=True), self.catalogue).prewarm()
        return delta_items(self.catalogue, self.versions[version - 1], self.versions[version], classes)

    def publish(self, attempt: AttemptId, items: Sequence[Item]) -> list[PayloadRef]:
        """One payload for each item, straight into the store."""
        return [self.put(attempt, [item], sequence=number) for number, item in enumerate(items)]

    def put(
        self,
        attempt: AttemptId,
        items: Sequence[Item],
        *,
        sequence: int,
        key: int | None = None,
        claims: dict[str, object] | None = None,
    ) -> PayloadRef:
        fields: dict[str, object] = {
            "attempt": attempt,
            "owner": 0,
            "sequence": sequence,
            "run": self.catalogue.run,
            "parent": attempt.version - 1,
            "catalogue": self.catalogue.digest(),
        }
        data = encode_payload(items, **(fields | (claims or {})))  # type: ignore[arg-type]
        self.store.put(payload_key(self.catalogue.run, attempt, 0, sequence if key is None else key), data)
        return PayloadRef(0, sequence, payload_digest(data), len(data))

    def manifest(self, attempt: AttemptId, refs: Sequence[PayloadRef], /, **changes: object) -> str:
        parent = self.records[attempt.version - 1] if attempt.version else None
        table = audit_of(self.catalogue, self.versions[attempt.version])
        manifest = Manifest(
            run=self.catalogue.run,
            attempt=attempt,
            parent_version=attempt.version - 1,
            parent=(parent.attempt, parent.manifest) if parent else None,
            catalogue=self.catalogue.digest(),
            overwrite_only=attempt == GENESIS,
            owners=(OwnerClose(attempt, 0, tuple(refs), table, 0, 0, ""),),
        )
        return self.archive.put_object("manifest", to_json(replace(manifest, **changes)))  # type: ignore[arg-type]

    def commit(self, attempt: AttemptId, refs: Sequence[PayloadRef], **changes: object) -> CommitRecord:
        parent = self.records[-1].attempt if self.records else None
        table = audit_of(self.catalogue, self.versions[attempt.version])
        self.records.append(
            CommitRecord(
                run=self.catalogue.run,
                version=attempt.version,
                attempt=attempt,
                epoch=1,
                writer="w",
                parent=parent,
                step=attempt.version,
                catalogue=self.catalogue.digest(),
                manifest=self.manifest(attempt, refs, **changes),
                audit=self.archive.put_object("audit", to_json(table)),
            )
        )
        return self.records[-1]

    def join(self) -> None:
        """Restore and serve the last record."""
        self.agent.fence(tau(len(self.records) - 1, 1), self.records[-1])
        self.agent.restore(tau(len(self.records) - 1, 1), self.records[-1])
        self.agent.settle(self.records[-1])

    def served(self) -> int | None:
        return self.gate.version

    def holds(self, version: int) -> bool:
        oracle = ToyRuntime(tiny=True)
        dense_load(oracle, self.catalogue, self.versions[version])
        return storage_bytes(self.runtime) == storage_bytes(oracle)


def tau(version: int, number: int) -> AttemptId:
    return AttemptId(number=number, version=version)


def opened(site: Site, version: int, number: int) -> tuple[AttemptId, list[PayloadRef]]:
    """Fenced and opened, with every payload published and none applied."""
    attempt = tau(version, number)
    site.agent.fence(attempt, site.records[-1])
    site.agent.open_apply(attempt, site.records[-1])
    return attempt, site.publish(attempt, site.items(version))
