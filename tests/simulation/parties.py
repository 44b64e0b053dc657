"""The real agents as simulated processes: they crash at any named point and start again."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dcr import observe
from dcr.config import CodecConfig
from dcr.errors import RefitError, Unreachable
from dcr.model import AttemptId, Catalogue, OwnerClose, PathClass, PayloadRef, TensorSpec
from dcr.receiver.agent import ReceiverAgent
from dcr.source import Baseline, OwnerAgent, OwnerSetup, owned
from dcr.testing.numpy_applier import NumpyApplier
from dcr.testing.toy_trainer import Placement, ToySource, ToyTensor
from dcr.transport.archive import StoreArchive
from dcr.transport.memory import MemoryStore
from dcr.transport.object_transport import ObjectTransport

Words = NDArray[np.uint16]
Tensors = dict[str, Words]

TENSORS = (
    ToyTensor(TensorSpec("split", (3, 2), "bfloat16"), Placement.ROWS),
    ToyTensor(TensorSpec("whole", (2,), "bfloat16"), Placement.REPLICATED),
)
CATALOGUE = Catalogue("ab" * 16, "cd" * 16, tuple(tensor.spec for tensor in TENSORS))
NUM_OWNERS = 2
PER_TASK = CodecConfig(chunk_mib=0, bucket_mib=0, threads=1, dense_share=1.0)
"""A payload a task, everything in one thread, and differences wherever they are allowed."""


class Crash(BaseException):
    """A process ends here; not an Exception, so that no border takes it for an error."""


class CrashAt:
    """Ends the running call at its ``num``-th named point."""

    def __init__(self, num: int) -> None:
        self.left = num

    def __call__(self, event: observe.Event) -> None:
        self.left -= 1
        if self.left == 0:
            raise Crash(event.name)


class UnreliableTransport:
    """Delivers what is there again at every fetch, newest first, and older attempts' payloads with it.

    Nothing of an attempt is seen at once: the first fetch shows two payloads, the next four.
    """

    def __init__(self, store: MemoryStore) -> None:
        self._inner = ObjectTransport(store, CATALOGUE.run)
        self._leftover = ObjectTransport(store, CATALOGUE.run)
        self._fetches: dict[AttemptId, int] = {}

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        """As the port says; receivers do not call it."""
        self._inner.publish(attempt, ref, data)

    def close(self, close: OwnerClose) -> None:
        """As the port says; receivers do not call it."""
        self._inner.close(close)

    def fetch(
        self, attempt: AttemptId, seen: Collection[tuple[int, int]]
    ) -> Iterator[tuple[PayloadRef, bytes]]:
        """See the class."""
        del seen
        self._fetches[attempt] = self._fetches.get(attempt, 0) + 1
        visible = list(self._inner.fetch(attempt, ()))[: 2 * self._fetches[attempt]]
        for older in sorted(self._fetches, reverse=True)[1:3]:
            visible += self._leftover.fetch(older, ())
        yield from reversed(visible)

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """As the port says."""
        self._inner.stop_and_wait(attempt)


class Gate:
    """What requests would meet: ``version`` is what they are answered with, None while shut."""

    def __init__(self) -> None:
        self.version: int | None = None

    def close(self) -> None:
        self.version = None

    def open(self, version: int, *, changed: bool) -> None:
        del changed
        self.version = version


class Receiver:
    """One runtime instance; ``resident`` are the words it would serve with."""

    def __init__(self, name: str, store: MemoryStore) -> None:
        self.name = name
        self._store = store
        self._lives = 0
        self.start()

    def start(self) -> None:
        """A new process: storage as it comes, nothing proven."""
        self._lives += 1
        self.resident: Tensors = {s.name: np.full(s.num_elements, 0xDEAD, "<u2") for s in CATALOGUE.tensors}
        self.gate = Gate()
        applier = NumpyApplier(CATALOGUE, cast("dict[str, Any]", self.resident), PathClass.XOR)
        self.agent = ReceiverAgent(
            self.name,
            applier,
            self.gate,
            transport=UnreliableTransport(self._store),
            archive=StoreArchive(self._store, CATALOGUE.run),
            catalogue=CATALOGUE,
            incarnation=f"{self.name}.{self._lives}",
            check="off",  # the protocol must be right without it
        )

    def holds(self, wanted: Tensors) -> bool:
        """Bit for bit what a dense refit would have left."""
        return all(np.array_equal(self.resident[name], words) for name, words in wanted.items())


class Owner:
    """One trainer rank; ``presented`` remembers what each of its lives presented, by step."""

    def __init__(self, rank: int, folder: Path, store: MemoryStore, words: Tensors) -> None:
        self.rank = rank
        self.name = f"owner-{rank}"
        self.presented: dict[tuple[str, int], Tensors] = {}
        self._store = store
        self._folder = folder / self.name
        self._folder.mkdir()
        self._lives = 0
        source = self._source(words)
        tasks = owned(source.tasks(), rank)
        self.tasks = tasks
        key = CATALOGUE.audit_key
        self._begin(source, Baseline.create(self._folder, tasks, source.read, audit_key=key))

    def start(self, words: Tensors) -> None:
        """A new process with these weights, on the tracker files that the last one left behind."""
        source = self._source(words)
        key = CATALOGUE.audit_key
        self._begin(source, Baseline.load(self._folder, owned(source.tasks(), self.rank), audit_key=key))

    def present(self, step: int, words: Tensors) -> None:
        """One optimizer step, then the offer."""
        self.source.set_all(cast("dict[str, Any]", words))
        self.presented[self.incarnation, step] = words
        self.agent.present(step)

    def tracked(self, into: Tensors) -> None:
        """Write this rank's trackers into canonical words."""
        for task in self.tasks:
            far = task.map.to_far(np.arange(task.num_elements, dtype=np.int64))
            into[task.name][far] = self.baseline.bits(task)

    def shard_of(self, words: Tensors, into: Tensors) -> None:
        """Copy the elements that this rank owns."""
        for task in self.tasks:
            far = task.map.to_far(np.arange(task.num_elements, dtype=np.int64))
            into[task.name][far] = words[task.name][far]

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


def call(agent: object, method: str, params: dict[str, Any], crash_at: int = 0) -> object:
    """Run one endpoint call; a RefitError is its answer. Raises Crash at the ``crash_at``-th point."""
    try:
        with observe.listening(CrashAt(crash_at)):
            return getattr(agent, method)(**params)
    except RefitError as err:
        return err


def lost() -> Unreachable:
    """The answer that a coordinator sees when nothing comes back."""
    return Unreachable("no answer within its deadline")
