"""The trainer's and the coordinator's side of a run, made by hand: versions of a checkpoint in a store.

Whole tensors of one owner; what is proven here is the receiver.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from dcr.codec import Item, Payload, decode_payload, encode_payload
from dcr.config import RefitConfig
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
    PathClass,
    PayloadRef,
    bits_dtype,
    to_json,
)
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.ports import RequestGate
from dcr.receiver.rank import RankPort
from dcr.receiver.workers.messages import Configure
from dcr.receiver.workers.ranks import RemoteRank, Workers, remote_ranks
from dcr.refit import Site, compose_instance
from dcr.testing.deltas import audit_of, delta_item, delta_items
from dcr.transport.directory import DirectoryStore

Version = dict[str, Bits]
_ITEMS_A_PAYLOAD = 8


class Run:
    """A committed chain in ``folder``: all ``records``, and the bits of the ``newest`` version."""

    def __init__(self, folder: Path, catalogue: Catalogue, first: Version) -> None:
        self.store_path = folder / "store"
        self.store_path.mkdir()
        self.site = Site(catalogue.run, DirectoryStore(self.store_path), folder)
        self.catalogue = catalogue
        self.site.archive.put_object("catalogue", to_json(catalogue))
        self.newest: Version = first
        self.records: list[CommitRecord] = []
        self._number = 0
        self._refs: dict[AttemptId, list[PayloadRef]] = {}
        nothing = {name: ~bits for name, bits in first.items()}
        items = delta_items(catalogue, nothing, first)
        manifest = self.publish(GENESIS, items, audit=audit_of(catalogue, first), overwrites=True)
        self.commit(GENESIS, manifest, first)

    def setup(self) -> Configure:
        """What a worker is told."""
        return Configure(str(self.store_path), self.catalogue.run, self.catalogue.digest())

    def ranks(self, workers: Workers) -> Callable[[Catalogue], Sequence[RankPort]]:
        """For ``compose_instance``."""

        def make(_: Catalogue) -> Sequence[RemoteRank]:
            return remote_ranks(workers, self.setup())

        return make

    def receiver(self, name: str, workers: Workers, gate: RequestGate) -> ReceiverAgent:
        """An EMPTY receiver over the engine behind ``workers``."""
        return compose_instance(
            name, self.site, self.records[0], ranks=self.ranks(workers), gate=gate, config=RefitConfig()
        )

    def next_attempt(self) -> AttemptId:
        """Never given before."""
        self._number += 1
        return AttemptId(version=len(self.records), number=self._number)

    def payloads(self, attempt: AttemptId, items: Sequence[Item]) -> list[Payload]:
        """``items`` as they are in the store, some to a payload."""
        found = []
        for sequence, start in enumerate(range(0, len(items), _ITEMS_A_PAYLOAD)):
            data = encode_payload(
                items[start : start + _ITEMS_A_PAYLOAD],
                attempt=attempt,
                owner=0,
                sequence=sequence,
                run=self.catalogue.run,
                parent=attempt.version - 1,
                catalogue=self.catalogue.digest(),
            )
            found.append(decode_payload(data))
            ref = PayloadRef(0, sequence, found[-1].digest, len(data))
            self.site.transport.publish(attempt, ref, data)
            self._refs.setdefault(attempt, []).append(ref)
        return found

    def publish(
        self,
        attempt: AttemptId,
        items: Sequence[Item],
        *,
        audit: AuditTable | None = None,
        overwrites: bool = False,
    ) -> str:
        """Some payloads and the manifest that lists them; returns its digest; ``audit`` proves it.

        ``overwrites``: nothing else is among ``items``.
        """
        self.payloads(attempt, items)
        refs = self._refs[attempt]
        parent = self.records[attempt.version - 1] if attempt.version else None
        manifest = Manifest(
            run=self.catalogue.run,
            attempt=attempt,
            parent_version=attempt.version - 1,
            parent=(parent.attempt, parent.manifest) if parent else None,
            catalogue=self.catalogue.digest(),
            overwrite_only=overwrites,
            owners=(OwnerClose(attempt, 0, tuple(refs), audit or {}, 0, 0, ""),),
        )
        return self.site.archive.put_object("manifest", to_json(manifest))

    def commit_unseen(self, new: Version, encoding: Encoding) -> CommitRecord:
        """A version that no receiver of the test takes part in."""
        attempt, classes = self.next_attempt(), dict.fromkeys(self.catalogue.by_name(), PathClass.XOR)
        items = items_of(self.catalogue, self.newest, new, classes, encoding)
        manifest = self.publish(attempt, items, audit=audit_of(self.catalogue, new))
        return self.commit(attempt, manifest, new)

    def commit(self, attempt: AttemptId, manifest: str, version: Version) -> CommitRecord:
        """The next record."""
        parent = self.records[-1].attempt if self.records else None
        record = CommitRecord(
            run=self.catalogue.run,
            version=attempt.version,
            attempt=attempt,
            epoch=1,
            writer="0" * 16,
            parent=parent,
            step=attempt.version,
            catalogue=self.catalogue.digest(),
            manifest=manifest,
            audit=self.site.archive.put_object("audit", to_json(audit_of(self.catalogue, version))),
        )
        self.newest = version
        self.records.append(record)
        return record

    def admit(self, receiver: ReceiverAgent) -> None:
        """Bring an empty receiver to the newest version and let it serve."""
        attempt = self.next_attempt()
        receiver.fence(attempt, self.records[-1])
        receiver.restore(attempt, self.records[-1])
        receiver.settle(self.records[-1])

    def refit(self, receiver: ReceiverAgent, new: Version, classes: Classification | None = None) -> None:
        """One transition to ``new``; ``classes`` None sends overwrites only."""
        attempt, record = self.next_attempt(), self.records[-1]
        receiver.fence(attempt, record)
        receiver.open_apply(attempt, record)
        items = delta_items(self.catalogue, self.newest, new, classes)
        proof = audit_of(self.catalogue, new) if classes is None else None  # a torn receiver asks for it
        manifest = self.publish(attempt, items, audit=proof, overwrites=classes is None)
        receiver.finish(attempt, manifest)
        receiver.settle(self.commit(attempt, manifest, new))


def items_of(
    catalogue: Catalogue, old: Version, new: Version, classes: Classification, encoding: Encoding
) -> list[Item]:
    """Changes of every name: ``encoding`` where its path takes differences and it fits, else what does."""
    items = []
    for name, spec in catalogue.by_name().items():
        chosen = encoding if classes[name] is PathClass.XOR else Encoding.OVERWRITE
        if chosen is Encoding.DELTA16 and bits_dtype(spec.dtype).itemsize != 2:
            chosen = Encoding.XOR
        item = delta_item(catalogue.audit_key, spec, chosen, old[spec.name], new[spec.name], name=name)
        if item.num_entries:
            items.append(item)
    return items
