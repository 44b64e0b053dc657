"""The owners of a toy trainer over one store, and commits made by hand: no coordinator, no receiver.

Tests of the source layer use it to drive real owners through transitions, crashes and restarts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dcr.audit import combine
from dcr.codec import Item, decode_payload
from dcr.config import CodecConfig
from dcr.model import (
    GENESIS,
    AttemptId,
    AuditTable,
    Bits,
    Catalogue,
    Classification,
    CommitRecord,
    Encoding,
    Manifest,
    OwnerClose,
    to_json,
)
from dcr.source import Baseline, OwnerAgent, OwnerSetup, owned
from dcr.testing.toy_trainer import Tensors, ToySource, ToyTensor, toy_sources
from dcr.transport.archive import StoreArchive
from dcr.transport.keys import payload_key
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport
from dcr.transport.values import combined


@dataclass(slots=True)
class ToyFleet:
    """``num_ranks`` owners whose trackers live under ``directory``; ``records`` is the committed history."""

    directory: Path
    tensors: Sequence[ToyTensor]
    bits: Mapping[str, Bits]
    num_ranks: int = 2
    codec: CodecConfig = field(default_factory=CodecConfig)
    store: MemoryStore = field(default_factory=MemoryStore)
    sources: list[ToySource] = field(init=False)
    owners: list[OwnerAgent] = field(init=False)
    baselines: list[Baseline] = field(init=False)
    records: list[CommitRecord] = field(default_factory=list)
    deadline_s: float = 5.0

    def __post_init__(self) -> None:
        self.sources = toy_sources(self.num_ranks, self.tensors, self.bits)
        self.baselines = [
            Baseline.create(
                self._folder(rank),
                owned(source.tasks(), rank),
                source.read,
                audit_key=self.catalogue.audit_key,
            )
            for rank, source in enumerate(self.sources)
        ]
        self.owners = [self._owner(rank, "first") for rank in range(self.num_ranks)]

    @property
    def catalogue(self) -> Catalogue:
        """The run's catalogue."""
        return Catalogue("ab" * 16, "cd" * 16, tuple(tensor.spec for tensor in self.tensors))

    @property
    def archive(self) -> StoreArchive:
        """The run's archive."""
        return StoreArchive(self.store, self.catalogue.run)

    def genesis(self) -> CommitRecord:
        """Anchor on every owner, then the record of version 0."""
        return self.commit(GENESIS, [owner.anchor() for owner in self.owners], step=0)

    def write(self, bits: Mapping[str, Bits]) -> None:
        """One optimizer step on every rank."""
        for source in self.sources:
            source.set_all(bits)

    def construct(
        self, attempt: AttemptId, classification: Classification, *, overwrite_only: bool = False
    ) -> list[OwnerClose]:
        """Fence and construct on every owner."""
        record = self.records[-1]
        for owner in self.owners:
            owner.fence(attempt, record)
        return [owner.construct(attempt, record, overwrite_only, classification) for owner in self.owners]

    def commit(self, attempt: AttemptId, closes: Sequence[OwnerClose], *, step: int) -> CommitRecord:
        """Write manifest, audit table and record as the coordinator would; nothing is folded in."""
        parent = self.records[-1] if self.records else None
        manifest = Manifest(
            run=self.catalogue.run,
            attempt=attempt,
            parent_version=attempt.version - 1,
            parent=(parent.attempt, parent.manifest) if parent else None,
            catalogue=self.catalogue.digest(),
            overwrite_only=all(item.encoding is Encoding.OVERWRITE for item in self.items(closes)),
            owners=tuple(closes),
        )
        record = CommitRecord(
            run=self.catalogue.run,
            version=attempt.version,
            attempt=attempt,
            epoch=1,
            writer="0" * 16,
            parent=parent.attempt if parent else None,
            step=step,
            catalogue=self.catalogue.digest(),
            manifest=self.archive.put_object("manifest", to_json(manifest)),
            audit=self.archive.put_object("audit", to_json(joined_audit(closes))),
        )
        self.records.append(record)
        return record

    def refit(self, bits: Mapping[str, Bits], classification: Classification) -> list[OwnerClose]:
        """A whole undisturbed transition to ``bits``; the new version is the step."""
        version = len(self.records)
        self.write(bits)
        for owner in self.owners:
            owner.present(version)
        attempt = AttemptId(version=version, number=version)
        closes = self.construct(attempt, classification)
        record = self.commit(attempt, closes, step=version)
        for owner in self.owners:
            owner.fold_in(attempt, record)
        return closes

    def items(self, closes: Sequence[OwnerClose]) -> list[Item]:
        """Every item of the closed lists, in declared order, from the store's bytes."""
        run = self.catalogue.run
        return [
            item
            for close in closes
            for ref in close.payloads
            for item in decode_payload(
                self.store.get(payload_key(run, ref.attempt or close.attempt, ref.owner, ref.sequence))
            ).items
        ]

    def restart(self, rank: int) -> OwnerAgent:
        """Kill one rank and start it again on what its directory holds; the source keeps its weights."""
        tasks = owned(self.sources[rank].tasks(), rank)
        self.baselines[rank] = Baseline.load(self._folder(rank), tasks, audit_key=self.catalogue.audit_key)
        self.owners[rank] = self._owner(rank, "second")
        return self.owners[rank]

    def tracked(self) -> Tensors:
        """Canonical tensors put together from all trackers; elements that none holds are zero."""
        found = {name: np.zeros_like(bits) for name, bits in self.bits.items()}
        for baseline in self.baselines:
            for task in baseline.tasks:
                far = task.map.to_far(np.arange(task.num_elements, dtype=np.int64))
                found[task.name][far] = baseline.bits(task)
        return found

    def _folder(self, rank: int) -> Path:
        return self.directory / f"owner-{rank}"

    def _owner(self, rank: int, incarnation: str) -> OwnerAgent:
        setup = OwnerSetup(
            catalogue=self.catalogue,
            archive=self.archive,
            transport=ObjectTransport(self.store, self.catalogue.run),
            baseline=self.baselines[rank],
            codec=self.codec,
            incarnation=incarnation,
            deadline_s=self.deadline_s,
        )
        return OwnerAgent(rank, self.sources[rank], setup)


def joined_audit(closes: Sequence[OwnerClose]) -> AuditTable:
    """Whole-tensor digests from the owners' partial ones."""
    names = sorted({name for close in closes for name in close.audit})
    return {name: combine(*(close.audit[name] for close in closes if name in close.audit)) for name in names}


def apply_items(items: Sequence[Item], tensors: Mapping[str, Bits]) -> Tensors:
    """The dense oracle of a receiver: items applied to copies of whole ``tensors`` [num_elements]."""
    result = {name: bits.copy() for name, bits in tensors.items()}
    for item in items:
        bits = result[item.name]
        bits[item.locations] = combined(item.encoding, bits[item.locations], item.values)
    return result
