"""A whole run in one process and one thread, whose parties can die at any named point.

Everything is real but the weights and the network: owners with trackers on disk, receivers with the
dispatch hook on a toy runtime, folder store, coordinator service.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dcr import observe
from dcr.commit.context import Roster, TransitionReport
from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.driver import Driver
from dcr.commit.service import CoordinatorService
from dcr.config import CodecConfig, CommitConfig
from dcr.errors import MissingObject, RefitError, Unreachable
from dcr.model import Catalogue, CommitRecord, new_nonce, stored_bits, to_json
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.lanes import dense_from_bits
from dcr.receiver.local import local_writer
from dcr.source import Baseline, OwnerAgent, OwnerSetup, owned
from dcr.testing.deltas import changed_version, random_version
from dcr.testing.toy_runtime import RecordingGate, ToyRuntime, catalogue
from dcr.testing.toy_trainer import Placement, Tensors, ToySource, ToyTensor, toy_sources
from dcr.transport.archive import StoreArchive
from dcr.transport.directory import DirectoryStore
from dcr.transport.object_transport import ObjectTransport

OWNERS = ("owner-0", "owner-1")
RECEIVERS = ("runtime-0", "runtime-1")


def _in_order() -> CodecConfig:
    """Everything in one thread: which mark is the n-th does not depend on luck.

    Steps change 30% of the elements; they are sent sparse all the same, as what is at stake is combining.
    """
    return CodecConfig(threads=1, dense_share=1.0)


class Crash(BaseException):
    """A party died here: like a kill, it passes every ``except Exception``."""


@contextmanager
def crashing(point: str, nth: int) -> Iterator[Counter[str]]:
    """Die at the ``nth`` (from 1) mark of ``point``; yields how often each point was passed."""
    passed: Counter[str] = Counter()
    lock = threading.Lock()  # marks of a pipeline come from several threads

    def listener(event: observe.Event) -> None:
        with lock:
            passed[event.name] += 1
            mine = event.name == point and passed[point] == nth
        if mine:
            raise Crash(f"{point} #{nth}")

    with observe.listening(listener):
        yield passed


class Mortal:
    """An endpoint in front of a party: a Crash inside kills the party, and the caller hears nothing."""

    def __init__(self, name: str, world: "World") -> None:
        self._name = name
        self._world = world

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**params: object) -> Any:
            party = self._world.party(self._name)
            try:
                return getattr(party, method)(**params)
            except Crash as crash:
                self._world.bury(self._name)
                raise Unreachable(f"{self._name} died: {crash}") from None

        return call


@dataclass(slots=True)
class World:
    """Two trainer ranks, two receivers, one coordinator. Training step k yields ``truth(k)``.

    A dead receiver restarts EMPTY at its next call; a dead owner takes the whole trainer with it,
    until ``restart_trainer``, as gloo does.
    """

    directory: Path
    plane: ControlPlane = field(default_factory=MemoryControlPlane)
    codec: CodecConfig = field(default_factory=_in_order)
    check: str = "written"
    mode: str = "sync"
    slice_bytes: int = 1 << 20
    service: CoordinatorService = field(init=False)
    sources: list[ToySource] = field(init=False)
    baselines: dict[int, Baseline] = field(default_factory=dict)
    owners: dict[str, OwnerAgent] = field(default_factory=dict)
    receivers: dict[str, ReceiverAgent] = field(default_factory=dict)
    runtimes: dict[str, ToyRuntime] = field(default_factory=dict)
    gates: dict[str, RecordingGate] = field(default_factory=dict)
    deaths: list[str] = field(default_factory=list)
    _truth: list[Tensors] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "store").mkdir(exist_ok=True)
        self.service = self._coordinator()

    def truth(self, step: int) -> Tensors:
        """Dense bits after training step ``step``: random ones, of which each step redraws about 30%."""
        if not self._truth:
            self._truth.append(random_version(self.catalogue, np.random.default_rng(7)))
        while len(self._truth) <= step:
            rng = np.random.default_rng(7 + len(self._truth))
            self._truth.append(changed_version(self.catalogue, self._truth[-1], rng, 0.3))
        return self._truth[step]

    # ---- the cast ----

    @property
    def catalogue(self) -> Catalogue:
        """Of the toy runtime."""
        return catalogue()

    @property
    def archive(self) -> StoreArchive:
        """The run's archive."""
        return StoreArchive(self.store, self.catalogue.run)

    @property
    def store(self) -> DirectoryStore:
        """The run's store."""
        return DirectoryStore(self.directory / "store")

    def record(self) -> CommitRecord:
        """What the control plane says."""
        return self.plane.read(self.catalogue.run).record

    def party(self, name: str) -> OwnerAgent | ReceiverAgent:
        """The living party; receivers are restarted on demand, owners are not."""
        if name in RECEIVERS:
            if name not in self.receivers:
                self._start_receiver(name)
            return self.receivers[name]
        if name not in self.owners:
            raise Unreachable(f"{name} is dead")
        return self.owners[name]

    def bury(self, name: str) -> None:
        """Forget what ``name`` had in memory."""
        self.deaths.append(name)
        if name in RECEIVERS:
            del self.receivers[name]
        else:
            self.owners.clear()

    def restart_coordinator(self) -> None:
        """A new coordinator, which takes the run over if there is one."""
        self.service = self._coordinator()

    def restart_trainer(self) -> None:
        """Both ranks anew, with the weights of the committed step (v0's without a run) and old trackers."""
        try:
            step: int | None = self.record().step
        except MissingObject:
            step = None
        self.sources = toy_sources(len(OWNERS), _tensors(), self.truth(step or 0))
        for rank, name in enumerate(OWNERS):
            self.owners[name] = self._owner(rank, fresh=step is None)

    # ---- what a driver does ----

    def create(self) -> None:
        """Start the trainer, create the run, let the receivers in."""
        self.restart_trainer()
        self._open(resume=False)

    def train_and_sync(self, step: int) -> TransitionReport | None:
        """Take training step ``step`` and publish it; None if it turns out to be committed already.

        Raises:
            RefitError, Crash: whoever died must be restarted; then call again.
        """
        if set(self.owners) != set(OWNERS):
            self.restart_trainer()
            self._open(resume=True)
        record = self.record()
        if record.step == step:
            # Asked again, as a client does that lost the answer: fold-in and settling are finished.
            return self._resettle(step, record)
        for source in self.sources:
            source.set_all(self.truth(step))
        for owner in self.owners.values():
            owner.present(step)
        return self.service.transition(step, record.version)

    def drive(self, step: int) -> TransitionReport | None:
        """``train_and_sync`` under a supervisor: restart what died, ask again, until it is committed."""
        for _ in range(5):
            try:
                return self.train_and_sync(step)
            except Crash:
                self.deaths.append("coordinator")
                self.restart_coordinator()
                self._open(resume=True)
            except RefitError:
                if len(self.owners) == len(OWNERS):
                    raise
        raise AssertionError(f"step {step} was not committed in five tries")

    # ---- proofs ----

    def differing_bits(self, name: str, step: int) -> int:
        """Bits of receiver ``name``'s storage that a dense load of ``truth(step)`` would not have left."""
        oracle = ToyRuntime()
        specs = {spec.name: spec for spec in self.catalogue.tensors}
        oracle.load((key, dense_from_bits(specs[key], bits)) for key, bits in self.truth(step).items())
        want, have = oracle.resident(), self.runtimes[name].resident()
        return sum(_differing(have[key], want[key]) for key in want)

    def tracker_errors(self, step: int) -> list[str]:
        """Tasks whose committed baseline is not ``truth(step)``."""
        wrong = []
        for rank, baseline in self.baselines.items():
            for task in baseline.tasks:
                index = task.map.to_far(np.arange(task.num_elements, dtype=np.int64))
                if not np.array_equal(baseline.bits(task), self.truth(step)[task.name][index]):
                    wrong.append(f"{rank}:{task.key}")
        return wrong

    # ---- inside ----

    def _open(self, *, resume: bool) -> None:
        try:
            self.record()
        except MissingObject:
            resume = False
        self.service.open_run(resume, None if resume else self.catalogue)
        for name in RECEIVERS:
            self.service.admit(name)

    def _resettle(self, step: int, record: CommitRecord) -> TransitionReport | None:
        if any(owner.collect(None).step == step for owner in self.owners.values()):
            return self.service.transition(step, record.version - 1)
        return None

    def _coordinator(self) -> CoordinatorService:
        config = CommitConfig(max_attempts=4, retry_pause_s=0.0, mode=self.mode)
        endpoints = {name: Mortal(name, self) for name in (*OWNERS, *RECEIVERS)}
        driver = Driver(self.plane, self.archive, endpoints, self.catalogue.run, pause=lambda _: None)
        return CoordinatorService(driver, config, Roster(OWNERS, RECEIVERS))

    def _owner(self, rank: int, *, fresh: bool) -> OwnerAgent:
        source, key = self.sources[rank], self.catalogue.audit_key
        folder = self.directory / f"trackers-{rank}"
        folder.mkdir(exist_ok=True)
        tasks = owned(source.tasks(), rank)
        if fresh:
            baseline = Baseline.create(folder, tasks, source.read, audit_key=key)
        else:
            baseline = Baseline.load(folder, tasks, audit_key=key)
        self.baselines[rank] = baseline
        self.archive.put_object("catalogue", to_json(self.catalogue))
        transport = ObjectTransport(self.store, self.catalogue.run)
        setup = OwnerSetup(
            self.catalogue, self.archive, transport, baseline, self.codec, new_nonce(), deadline_s=2.0
        )
        return OwnerAgent(rank, source, setup)

    def _start_receiver(self, name: str) -> None:
        runtime, gate = ToyRuntime(), RecordingGate()
        _scramble(runtime)
        self.runtimes[name], self.gates[name] = runtime, gate
        self.receivers[name] = ReceiverAgent(
            name,
            local_writer(runtime, self.catalogue),
            gate,
            transport=ObjectTransport(self.store, self.catalogue.run),
            archive=self.archive,
            catalogue=self.catalogue,
            incarnation=new_nonce(),
            check=self.check,
            slice_bytes=self.slice_bytes,
        )


def _tensors() -> list[ToyTensor]:
    cycle = (Placement.ROWS, Placement.COLUMNS, Placement.REPLICATED)
    return [ToyTensor(spec, cycle[i % 3]) for i, spec in enumerate(catalogue().tensors)]


def _scramble(runtime: ToyRuntime) -> None:
    """A fresh process holds anything but the committed bits."""
    generator = torch.Generator().manual_seed(1)
    for name in ("embed", "qkv", "gate_up", "down"):
        tensor = runtime.data(name)
        tensor.copy_(torch.randn(tensor.shape, generator=generator))


def _differing(have: torch.Tensor, want: torch.Tensor) -> int:
    return int(np.bitwise_count(stored_bits(have) ^ stored_bits(want)).sum())
