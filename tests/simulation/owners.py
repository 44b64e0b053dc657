"""The real owner agent as a simulated trainer rank, on tracker files that outlive it."""

from collections import Counter
from pathlib import Path
from typing import Any, cast

import numpy as np

from dcr.source import Baseline, OwnerAgent, OwnerSetup, owned
from dcr.testing.toy_trainer import ToySource
from dcr.transport.archive import StoreArchive
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport
from tests.simulation.parties import CATALOGUE, NUM_OWNERS, PER_TASK, TENSORS, Tensors


class Owner:
    """One trainer rank; ``presented`` remembers what each of its lives presented, by step."""

    def __init__(
        self, rank: int, folder: Path, store: MemoryStore, words: Tensors, events: Counter[str]
    ) -> None:
        self.rank = rank
        self.name = f"owner-{rank}"
        self.presented: dict[tuple[str, int], Tensors] = {}
        self.folder = folder / self.name
        self.folder.mkdir()
        self._store = store
        self._events = events
        self._lives = 0
        source = self._source(words)
        tasks = owned(source.tasks(), rank)
        self.tasks = tasks
        self._where = {
            task.key: task.map.to_far(np.arange(task.num_elements, dtype=np.int64)) for task in tasks
        }
        key = CATALOGUE.audit_key
        self._begin(source, Baseline.create(self.folder, tasks, source.read, audit_key=key))

    def start(self, words: Tensors) -> None:
        """A new process with these weights, on the tracker files that the last one left behind."""
        source = self._source(words)
        key = CATALOGUE.audit_key
        self._begin(source, Baseline.load(self.folder, owned(source.tasks(), self.rank), audit_key=key))
        if self.baseline.version < 0:
            self._events["came back with torn trackers"] += 1

    def present(self, step: int, words: Tensors) -> None:
        """One optimizer step, then the offer."""
        self.source.set_all(cast("dict[str, Any]", words))
        self.presented[self.incarnation, step] = words
        self.agent.present(step)

    def tracks(self, wanted: Tensors) -> str:
        """The first tensor of which this rank's trackers hold other bits; empty without one."""
        for task in self.tasks:
            if not np.array_equal(self.baseline.bits(task), wanted[task.name][self._where[task.key]]):
                return task.name
        return ""

    def shard_of(self, words: Tensors, into: Tensors) -> None:
        """Copy the elements that this rank owns."""
        for task in self.tasks:
            where = self._where[task.key]
            into[task.name][where] = words[task.name][where]

    def _source(self, words: Tensors) -> ToySource:
        return ToySource(self.rank, NUM_OWNERS, TENSORS, cast("dict[str, Any]", words))

    def _begin(self, source: ToySource, baseline: Baseline) -> None:
        self._lives += 1
        self.incarnation = f"{self.name}.{self._lives}"
        self.source, self.baseline = source, baseline
        setup = OwnerSetup(
            catalogue=CATALOGUE,
            archive=StoreArchive(self._store, CATALOGUE.run),
            transport=ObjectTransport(self._store, CATALOGUE.run),
            baseline=baseline,
            codec=PER_TASK,
            incarnation=self.incarnation,
            deadline_s=0.0,
        )
        self.agent = OwnerAgent(self.rank, source, setup)
