"""What one task contributes to a payload list: compare, prove, represent (DESIGN R4, R6, P5)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dcr import observe
from dcr.codec import Item
from dcr.config import CodecConfig
from dcr.model import AuditDigest, Bits, Classification, Encoding
from dcr.source.baseline import Baseline
from dcr.source.candidate import Candidate, require_same_bits
from dcr.source.change import Change, TaskChange, everything, find_change
from dcr.source.construct import Specs, emitted_names
from dcr.source.density import pays_whole, whole_encoding
from dcr.source.detect import Indices, host_bits
from dcr.source.digests import TaskDigests, names_of
from dcr.source.ports import ShardSource
from dcr.source.publish import Converted
from dcr.source.representation import Representation
from dcr.source.task import AffineTask
from dcr.transport.values import differences


@dataclass(frozen=True, slots=True)
class Converter:
    """The candidate's shards, the trackers they are compared with, and the catalogue's view of both.

    A shard of which more than ``dense_share`` changed is sent whole. Thread-safe for different tasks.
    """

    source: ShardSource
    baseline: Baseline
    specs: Specs
    audit_key: str
    dense_share: float = CodecConfig().dense_share

    def changes(
        self,
        candidate: Candidate,
        representation: Representation,
        classification: Classification,
        *,
        dense: bool = False,
    ) -> Callable[[AffineTask], Converted]:
        """Conversion of one attempt; each call raises IntegrityError if the candidate's bits moved.

        ``classification`` says which aliases are placed and hence sent, on retries too. ``dense``: every
        shard is sent whole, changed or not.
        """

        def convert(task: AffineTask) -> Converted:
            old, new = self.baseline.bits(task), self.source.read(task)
            change = find_change(task, new, old, dense_share=self.dense_share)
            digests, sent = change.proofs(self.audit_key, self.baseline.digests(task))
            require_same_bits(candidate, task, digests)
            if not (change.num_changed or dense) or not task.map.num_mapped:
                return Converted((), digests, 0)
            names = emitted_names(task, classification)
            encodings = {name: representation.of(name, task.dtype) for name in names}
            if (
                isinstance(change, TaskChange)
                and not dense
                and not pays_whole(change, encodings[task.name], old, new)
            ):
                return Converted(self._sparse(change, encodings, sent), digests, change.num_changed)
            bits = old, host_bits(new)
            best = {name: whole_encoding(encoding, *bits) for name, encoding in encodings.items()}
            items = self._whole(task, best, bits, digests)
            return Converted(
                items, digests, change.num_changed, whole=not dense
            )  # a dense one is no surprise

        return convert

    def anchor(self, task: AffineTask) -> Converted:
        """Every element of the tracker as an absolute value, under the primary name."""
        bits, digests = self.baseline.bits(task), self.baseline.digests(task)
        if not task.map.num_mapped:
            return Converted((), digests, 0)
        items = self._whole(task, {task.name: Encoding.OVERWRITE}, (bits, bits), digests)
        return Converted(items, digests, task.map.num_mapped)

    def fold_changes(self, version: int, *, threads: int) -> Iterator[Change]:
        """Compare again, task by task; the consumer writes each before it asks for the next."""
        for task in self.baseline.tasks:
            with observe.stage("owner.fold_in.task", key=task.key, version=version):
                new = self.source.read(task)
                yield find_change(
                    task, new, self.baseline.bits(task), dense_share=self.dense_share, threads=threads
                )

    def _sparse(self, change: TaskChange, encodings: dict[str, Encoding], digests: TaskDigests) -> list[Item]:
        """What changed, one item a name; ``digests`` are of that."""
        at, old, new = change.locations, change.old, change.new
        return [
            self._item(change.task, name, encodings[name], (at, old, new), digest)
            for name, digest in zip(names_of(change.task), digests, strict=True)
            if name in encodings
        ]

    def _whole(
        self,
        task: AffineTask,
        encodings: dict[str, Encoding],
        bits: tuple[Bits, Bits],
        digests: TaskDigests,
    ) -> list[Item]:
        """Every mapped element of the shard, one item a name; ``bits`` are old and new [N]."""
        at, order = everything(task)
        old, new = bits if order is None else (bits[0][order], bits[1][order])
        return [
            self._item(task, name, encodings[name], (at, old, new), digest)
            for name, digest in zip(names_of(task), digests, strict=True)
            if name in encodings
        ]

    def _item(
        self,
        task: AffineTask,
        name: str,
        encoding: Encoding,
        entries: tuple[Indices, Bits, Bits],
        digest: AuditDigest,
    ) -> Item:
        """``entries`` are canonical locations, old and new bits, each [E]."""
        locations, old, new = entries
        return Item(
            name=name,
            shape=self.specs[name].shape,
            dtype=task.dtype,
            encoding=encoding,
            positions=locations,
            values=differences(encoding, old, new),
            target_digest=digest,
        )
