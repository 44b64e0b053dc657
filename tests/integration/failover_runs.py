"""A trainer rank and a receiver in this process, coordinators as processes that can be killed and stopped."""

import contextlib
import functools
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from dcr import observe
from dcr.commit.remote import HttpCaller
from dcr.config import CommitConfig, RefitConfig
from dcr.errors import ConfigError
from dcr.model import AttemptId, Bits, CommitRecord, OwnerReport, ReceiverReport, ReceiverState, stored_bits
from dcr.receiver.lanes import dense_from_bits
from dcr.refit import ControlSpec, Refit, Site, SyncReport, compose_receiver
from dcr.refit.pump import Pump
from dcr.source import OwnerAgent
from dcr.testing.deltas import changed_version, random_version
from dcr.testing.toy_runtime import TINY, RecordingGate, ToyRuntime, catalogue
from dcr.testing.toy_trainer import ToySource, ToyTensor
from dcr.transport.announce import Announcement, announce
from dcr.transport.directory import DirectoryStore

CONFIG = RefitConfig(commit=CommitConfig(collect_deadline_s=60.0, retry_pause_s=0.05))
RECEIVER = "east-0"
LEASE_S = 2.0


class Coordinator:
    """``dcr coordinator`` as a process; ``lines`` is what it has said of its role so far."""

    def __init__(self, name: str, control: ControlSpec, site: Site, store: Path) -> None:
        words = ["--run", site.run, "--store", str(store), "--endpoints", str(site.endpoints)]
        words += ["--control", control.text(), "--world", "1", "--receivers", RECEIVER]
        words += ["--lease", str(LEASE_S), "--name", name, "--set", "retry_pause_s=0.05"]
        argv = [sys.executable, "-u", "-m", "dcr_recipes.cli", "coordinator", *words]
        self.name = name
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def until(self, role: str) -> None:
        """Wait until it says that it takes ``role``; other lines are skipped."""
        seen = [self._lines.get(timeout=60)]
        while role not in seen[-1]:
            assert seen[-1], f"{self.name} has ended without {role!r}: {seen}"
            seen.append(self._lines.get(timeout=60))

    def send(self, number: signal.Signals) -> None:
        """Kill it, stop it, or let it go on."""
        os.kill(self._process.pid, number)

    def end(self) -> None:
        """SIGKILL; stopped or not."""
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put("")


@dataclass
class Fleet:
    """One run of toy weights. ``truth[k]`` are the bits of step k."""

    folder: Path
    control: ControlSpec
    run: str
    coordinators: dict[str, Coordinator] = field(default_factory=dict)
    runtime: ToyRuntime = field(default_factory=lambda: ToyRuntime(tiny=True))
    gate: RecordingGate = field(default_factory=RecordingGate)
    truth: list[dict[str, Bits]] = field(default_factory=list)
    receiver: Announcement | None = None

    def __post_init__(self) -> None:
        (self.folder / "store").mkdir()
        self.site = Site(self.run, DirectoryStore(self.folder / "store"), self.folder / "endpoints")
        self.caller = HttpCaller(self.site.peers)
        self.truth.append(random_version(catalogue(tiny=True), np.random.default_rng(3)))
        self.source = ToySource(0, 1, [ToyTensor(spec) for spec in TINY], self.truth[0])
        self.refit = Refit.compose(
            CONFIG, self.site, source=self.source, rank=0, trackers=self.folder / "trackers"
        )

    def start(self, name: str, role: str) -> Coordinator:
        """A coordinator that has taken ``role``."""
        made = Coordinator(name, self.control, self.site, self.folder / "store")
        self.coordinators[name] = made
        made.until(role)
        return made

    def open(self) -> None:
        """Create the run and have the receiver serve v0."""
        record = self.refit.open(resume=False)
        agent = compose_receiver(
            RECEIVER, self.site, record, loader=self.runtime, gate=self.gate, config=CONFIG
        )
        self.receiver = announce(self.site.peers, RECEIVER, Pump(agent).handlers())
        coordinator = self.site.coordinator(CONFIG.commit, self.caller)
        report = coordinator.patiently("admit", ReceiverReport, 60.0, receiver=RECEIVER)
        assert report.state is ReceiverState.CLEAN

    def step(self) -> SyncReport:
        """Train one step and refit."""
        rng = np.random.default_rng(10 + len(self.truth))
        self.truth.append(changed_version(catalogue(tiny=True), self.truth[-1], rng, 0.3))
        self.source.set_all(self.truth[-1])
        return self.refit.sync(len(self.truth) - 1)

    def differing_bits(self) -> int:
        """Of the receiver's storage, against a dense load of the last step."""
        oracle = ToyRuntime(tiny=True)
        specs = {spec.name: spec for spec in TINY}
        oracle.load((name, dense_from_bits(specs[name], bits)) for name, bits in self.truth[-1].items())
        have, want = self.runtime.resident(), oracle.resident()
        return sum(
            int(np.bitwise_count(stored_bits(have[name]) ^ stored_bits(want[name])).sum()) for name in want
        )

    def close(self) -> None:
        """End every process."""
        for coordinator in self.coordinators.values():
            coordinator.end()
        if self.receiver is not None:
            self.receiver.close()
        self.refit.close()
        self.caller.close()


@contextlib.contextmanager
def fleet(folder: Path, control: ControlSpec, run: str) -> Iterator[Fleet]:
    """A run that is not created yet, with coordinator ``a`` active and ``b`` standing by."""
    made = Fleet(folder, control, run)
    try:
        made.start("a", "a is the active coordinator")
        made.start("b", "b stands by; a leads")
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def once_at(point: str, act: Callable[[], None]) -> Iterator[list[str]]:
    """Call ``act`` at the first mark of ``point`` in this process; yields the marks that were met."""
    met: list[str] = []
    lock = threading.Lock()

    def listen(event: observe.Event) -> None:
        if event.name == point:
            with lock:
                met.append(event.name)
                first = len(met) == 1
            if first:
                act()

    with observe.listening(listen):
        yield met


def killed_while_the_candidate_is_uncommitted(fleet: Fleet, point: str) -> None:
    """SIGKILL of the active coordinator at ``point`` of a transition: the other one finishes it (P10)."""
    a, b = fleet.coordinators["a"], fleet.coordinators["b"]
    fleet.open()
    assert fleet.step().record.version == 1
    with once_at(point, lambda: a.send(signal.SIGKILL)) as met:
        report = fleet.step()
    assert met, f"{point} was never passed"
    b.until("b is the active coordinator")
    assert (report.record.version, report.record.step) == (2, 2)
    assert (fleet.gate.version, fleet.differing_bits()) == (2, 0)
    assert fleet.step().record.version == 3
    assert (fleet.gate.version, fleet.differing_bits()) == (3, 0)


def killed_when_the_run_was_created(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL of the active one before it can say that v0 is committed: whoever asked is not refused."""
    a, b = fleet.coordinators["a"], fleet.coordinators["b"]
    fold_in, killed = OwnerAgent.fold_in, threading.Event()

    @functools.wraps(fold_in)
    def killing(self: OwnerAgent, attempt: AttemptId, record: CommitRecord) -> OwnerReport:
        if not killed.is_set():
            killed.set()
            a.send(signal.SIGKILL)
        return fold_in(self, attempt, record)

    monkeypatch.setattr(OwnerAgent, "fold_in", killing)
    fleet.open()
    assert killed.is_set()
    b.until("b is the active coordinator")
    assert (fleet.refit.record.version, fleet.gate.version, fleet.differing_bits()) == (0, 0, 0)
    assert fleet.step().record.version == 1
    assert (fleet.gate.version, fleet.differing_bits()) == (1, 0)


def stopped_while_the_candidate_is_uncommitted(fleet: Fleet, point: str) -> None:
    """SIGSTOP of the active one, and SIGCONT once the other one has committed: it does no harm."""
    a, b = fleet.coordinators["a"], fleet.coordinators["b"]
    fleet.open()
    with once_at(point, lambda: a.send(signal.SIGSTOP)) as met:
        report = fleet.step()
    assert met, f"{point} was never passed"
    b.until("b is the active coordinator")
    assert (fleet.gate.version, fleet.differing_bits()) == (1, 0)
    a.send(signal.SIGCONT)
    a.until("a stands down")
    a.until("a stands by; b leads")
    assert fleet.control.plane().read(fleet.run).record == report.record
    assert (fleet.gate.version, fleet.differing_bits()) == (1, 0)
    b.send(signal.SIGTERM)
    a.until("a is the active coordinator")
    assert fleet.step().record.version == 2
    assert (fleet.gate.version, fleet.differing_bits()) == (2, 0)


def taken_over_only_by_name(fleet: Fleet) -> None:
    """P1: a trainer that finds the run is refused without ``resume``, and goes on with it."""
    before = fleet.control.plane().read(fleet.run)
    fleet.refit.close()
    other = Refit.compose(
        CONFIG, fleet.site, source=fleet.source, rank=0, trackers=fleet.folder / "others trackers"
    )
    with pytest.raises(ConfigError, match=f"exists at version {before.record.version}; pass resume=true"):
        other.open(resume=False)
    other.close()
    assert fleet.control.plane().read(fleet.run) == before
    fleet.refit = Refit.compose(
        CONFIG, fleet.site, source=fleet.source, rank=0, trackers=fleet.folder / "trackers"
    )
    assert fleet.refit.open(resume=True) == before.record
    assert fleet.control.plane().read(fleet.run).epoch > before.epoch
    assert fleet.step().record.version == before.record.version + 1
    assert (fleet.gate.version, fleet.differing_bits()) == (before.record.version + 1, 0)


def found_again(fleet: Fleet) -> None:
    """The endpoints folder of a live run is deleted: every process announces itself again."""
    shutil.rmtree(fleet.site.endpoints)
    version = fleet.step().record.version
    assert (fleet.gate.version, fleet.differing_bits()) == (version, 0)
