"""What one task contributes to a payload list: compare, prove, represent (DESIGN R4, R6, P5)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dcr import observe
from dcr.codec import Item
from dcr.model import Classification, Encoding
from dcr.source.baseline import Baseline
from dcr.source.candidate import Candidate, require_same_bits
from dcr.source.change import TaskChange, find_change, whole
from dcr.source.construct import Specs, emitted_names, make_item
from dcr.source.ports import ShardSource
from dcr.source.publish import Converted
from dcr.source.representation import Representation
from dcr.source.task import AffineTask


@dataclass(frozen=True, slots=True)
class Converter:
    """The candidate's shards, the trackers they are compared with, and the catalogue's view of both."""

    source: ShardSource
    baseline: Baseline
    specs: Specs
    audit_key: str

    def changes(
        self, candidate: Candidate, representation: Representation, classification: Classification
    ) -> Callable[[AffineTask], Converted]:
        """Conversion of one attempt; each call raises IntegrityError if the candidate's bits moved.

        ``classification`` says which aliases are placed and hence sent, on retries too.
        """

        def convert(task: AffineTask) -> Converted:
            change = self._find(task)
            digests = change.digests(self.audit_key, self.baseline.digests(task))
            require_same_bits(candidate, task, digests)
            num_changed = change.locations.size
            names = emitted_names(task, classification) if num_changed else ()
            items = [self._item(change, name, representation.of(name, task.dtype)) for name in names]
            return Converted(items, digests, num_changed)

        return convert

    def anchor(self, task: AffineTask) -> Converted:
        """Every element of the tracker as an absolute value, under the primary name."""
        change = whole(task, self.baseline.bits(task))
        num_elements = change.locations.size
        items = [self._item(change, task.name, Encoding.OVERWRITE)] if num_elements else []
        return Converted(items, self.baseline.digests(task), num_elements)

    def fold_changes(self, version: int) -> Iterator[TaskChange]:
        """Compare again, task by task; the consumer writes each before it asks for the next."""
        for task in self.baseline.tasks:
            with observe.stage("owner.fold_in.task", key=task.key, version=version):
                yield self._find(task)

    def _find(self, task: AffineTask) -> TaskChange:
        return find_change(task, self.source.read(task), self.baseline.bits(task))

    def _item(self, change: TaskChange, name: str, encoding: Encoding) -> Item:
        return make_item(change, name, encoding, self.specs[name], self.audit_key)
