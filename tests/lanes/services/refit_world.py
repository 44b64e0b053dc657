"""A whole run in this process over a real bucket: trainer ranks, receivers and a coordinator, over HTTP."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np

from dcr import observe
from dcr.commit.remote import HttpCaller
from dcr.config import ChainConfig, CommitConfig, RefitConfig
from dcr.errors import AttemptFailed
from dcr.model import Bits, ReceiverReport, ReceiverState, stored_bits
from dcr.receiver.lanes import dense_from_bits
from dcr.refit import ControlSpec, Post, Refit, Site, SyncReport, compose_receiver, coordinate
from dcr.refit.pump import Pump
from dcr.testing.deltas import changed_version, random_version
from dcr.testing.toy_runtime import TINY, RecordingGate, ToyRuntime, catalogue
from dcr.testing.toy_trainer import Placement, ToySource, ToyTensor
from dcr.transport.announce import announce
from dcr.transport.s3 import S3Store
from dcr.transport.s3_client import S3Address

T = TypeVar("T")
RECEIVERS = ("runtime-0", "runtime-1")
WORLD = 2
RUN = "ab" * 16


@dataclass
class RefitWorld:
    """``truth`` are the bits of the last step."""

    folder: Path
    address: S3Address
    mode: str = "sync"
    runtimes: list[ToyRuntime] = field(default_factory=list)
    refits: list[Refit] = field(default_factory=list)
    step: int = 0

    def __post_init__(self) -> None:
        commit = CommitConfig(mode=self.mode, collect_deadline_s=60.0, retry_pause_s=0.0, lease_s=0.0)
        self.config = RefitConfig(commit=commit, chain=ChainConfig(anchor_share=0.0))  # anchors are kept
        self.store = S3Store(self.address)
        self.site = Site(RUN, self.store, self.folder / "endpoints", ahead=2)
        self.truth: dict[str, Bits] = random_version(catalogue(tiny=True), np.random.default_rng(3))
        tensors = [ToyTensor(spec, Placement.ROWS) for spec in TINY]
        self.sources = [ToySource(rank, WORLD, tensors, self.truth) for rank in range(WORLD)]

    @contextmanager
    def running(self) -> Iterator["RefitWorld"]:
        """With v0 committed and served."""
        with ExitStack() as stack:
            stack.callback(self.store.close)
            self._coordinate(stack)
            for rank, source in enumerate(self.sources):
                trackers = self.folder / f"trackers-{rank}"
                refit = Refit.compose(self.config, self.site, source=source, rank=rank, trackers=trackers)
                self.refits.append(refit)
                stack.callback(refit.close)
            self._everywhere(lambda refit: refit.open(resume=False))
            for name in RECEIVERS:
                self._receive(stack, name)
            yield self

    def refit(self) -> SyncReport:
        """Train one step and publish it; rank 0's report."""
        self.step += 1
        rng = np.random.default_rng(10 + self.step)
        self.truth = changed_version(catalogue(tiny=True), self.truth, rng, 0.3)
        for source in self.sources:
            source.set_all(self.truth)
        return self._everywhere(lambda refit: refit.sync(self.step))[0]

    def differing_bits(self) -> int:
        """Of all receivers' storage, against a dense load of the last step."""
        oracle = ToyRuntime(tiny=True)
        specs = {spec.name: spec for spec in TINY}
        oracle.load((name, dense_from_bits(specs[name], bits)) for name, bits in self.truth.items())
        want = {name: stored_bits(tensor) for name, tensor in oracle.resident().items()}
        return sum(
            int(np.bitwise_count(stored_bits(runtime.resident()[name]) ^ bits).sum())
            for runtime in self.runtimes
            for name, bits in want.items()
        )

    def _everywhere(self, call: Callable[[Refit], T]) -> list[T]:
        with ThreadPoolExecutor(WORLD) as pool:
            return list(pool.map(call, self.refits))

    def _coordinate(self, stack: ExitStack) -> None:
        stop = threading.Event()
        control = ControlSpec("sqlite", self.folder / "control.sqlite")
        post = Post(self.config.commit, self.site, control, WORLD, RECEIVERS, 60.0)
        thread = threading.Thread(
            target=coordinate, args=("c", post, stop), kwargs={"tell": lambda _: None}, name="coordinate"
        )
        thread.start()
        stack.callback(thread.join)
        stack.callback(stop.set)

    def _receive(self, stack: ExitStack, name: str) -> None:
        runtime = ToyRuntime(tiny=True)
        agent = compose_receiver(
            name, self.site, self.refits[0].record, loader=runtime, gate=RecordingGate(), config=self.config
        )
        pump = Pump(agent)
        stack.callback(pump.close)
        stack.callback(announce(self.site.peers, name, pump.handlers()).close)
        caller = HttpCaller(self.site.peers)
        stack.callback(caller.close)
        coordinator = self.site.coordinator(self.config.commit, caller)
        admitted = coordinator.patiently("admit", ReceiverReport, 60.0, receiver=name)
        assert admitted.state is ReceiverState.CLEAN
        self.runtimes.append(runtime)


@contextmanager
def failing_at(point: str) -> Iterator[list[str]]:
    """Fail whatever passes ``point`` first; yields the points where something failed."""
    failed: list[str] = []
    lock = threading.Lock()

    def listen(event: observe.Event) -> None:
        if event.name == point:
            with lock:
                first = not failed
                failed.append(point)
            if first:
                raise AttemptFailed(f"a fault at {point}")

    with observe.listening(listen):
        yield failed


def descriptors() -> dict[str, str]:
    """Open file descriptors of this process, and what each is of; sockets with the port that they lead to."""
    ports = {}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state = line.split()[:4]
        ports[line.split()[9]] = f"{int(local.split(':')[1], 16)}->{int(remote.split(':')[1], 16)} {state}"
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            what = os.readlink(f"/proc/self/fd/{name}")
            found[name] = f"socket {ports.get(what[8:-1])}" if what.startswith("socket:") else what
        except OSError:  # that of the listing itself
            continue
    return found
