"""The real receiver agent and lease keeper as a simulated process, which crashes at any point."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np

from dcr.errors import RefitError
from dcr.model import PathClass
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.area import Room
from dcr.receiver.rules import Standing
from dcr.testing.numpy_applier import NumpyApplier
from dcr.transport.archive import StoreArchive
from dcr.transport.memory import MemoryStore
from tests.simulation.clocks import Clock, WorldTime
from tests.simulation.leases import Desk, Renewals, SimulatedLease
from tests.simulation.parties import CATALOGUE, Crash, Tensors, call, lost
from tests.simulation.serving import Serving
from tests.simulation.stores import UnreliableTransport
from tests.simulation.suspended import SuspendedPump, TurnLock


class Receiver:
    """One runtime instance; ``resident`` are the words it serves with.

    ``cut_off`` steps long no message reaches it or comes from it; if it is ``frozen`` as well, its
    process stands still. ``gone``: it has left, and there is no process.
    """

    def __init__(
        self, name: str, store: MemoryStore, folder: Path, time: WorldTime, rate: float, events: Counter[str]
    ) -> None:
        self.name = name
        self.cut_off = 0
        self.frozen = False
        self.gone = True
        self.rate = rate
        self.crowded_for = 0
        self._store = store
        self._folder = folder
        self._time = time
        self._events = events
        self._lives = 0

    def __repr__(self) -> str:  # type: ignore[explicit-override]  # typing.override: 3.12
        if self.gone:
            return f"{self.name} is gone"
        standing, lease = self.standing, f"lease {self.renewals.lease.left_s():g} s"
        return f"{self.incarnation} {standing.state}({standing.version}), {lease}, cut off {self.cut_off}"

    def start(self) -> None:
        """A new process: storage as it comes, nothing proven; what the old one was doing ends."""
        self.end()
        self._lives += 1
        self.gone = self.frozen = False
        self.cut_off = 0
        clock = Clock(self._time, 1000.0 * self._lives, self.rate)
        self.incarnation = f"{self.name}.{self._lives}"
        self.resident: Tensors = {s.name: np.full(s.num_elements, 0xDEAD, "<u2") for s in CATALOGUE.tensors}
        self.lock = TurnLock()
        lease = SimulatedLease(clock)
        self.serving = Serving(self.resident, lease, self._events)
        self.agent = ReceiverAgent(
            self.name,
            NumpyApplier(CATALOGUE, cast("dict[str, Any]", self.resident), PathClass.XOR),
            self.serving.gate,
            transport=UnreliableTransport(self._store, CATALOGUE.run),
            archive=StoreArchive(self._store, CATALOGUE.run),
            catalogue=CATALOGUE,
            incarnation=self.incarnation,
            check="off",  # the protocol must be right without it
            room=Room(1 << 20, 1 << 20, self._folder / self.name),
        )
        self.crowded_for = 0
        self.agent._held.lock = self.lock  # type: ignore[assignment]
        self.renewals = Renewals(self.agent, lease, self._events)

    def end(self) -> None:
        """The process, if there is one, ends, whatever it was in the midst of."""
        if self.gone:
            return
        self.gone = True
        self.renewals.end()
        pump, self.lock.pump = self.lock.pump, None
        if pump is not None:
            pump.finish(killed=True)

    def leave(self) -> None:
        """A graceful end: nothing is answered any more, then the process ends."""
        self.renewals.lease.end()
        self.end()

    @property
    def standing(self) -> Standing:
        """What it believes to hold, without waiting for anything."""
        return self.agent._held.standing

    def holds(self, wanted: Tensors) -> bool:
        """Bit for bit what a dense refit would have left."""
        return all(np.array_equal(self.resident[name], words) for name, words in wanted.items())

    def deliver(self, method: str, params: dict[str, Any], crash_at: int = 0) -> object:
        """Execute a call; a crash loses its answer and the process."""
        lock, waits = self.lock, self.lock.num_waits
        try:
            return call(self.agent, method, params, crash_at)
        except Crash:
            self._events[f"died inside {method}"] += 1
            self.start()
            return lost()
        finally:
            self._events[f"{method} waited for a write under way"] += lock.num_waits - waits

    def pump(self) -> None:
        """The background thread applies what it sees; failing to fetch is no fault of it."""
        with suppress(RefitError):
            self.agent.pump()

    def crowd(self, *, on_disk: bool, steps: int) -> None:
        """Payloads find no room in memory, and perhaps none on disk, for ``steps`` steps."""
        area = self.agent._stager._area
        area._room = Room(0, 1 << 20 if on_disk else 0, self._folder / self.name)
        self.crowded_for = steps

    def begin_pump(self, at: int, left: int) -> None:
        """The background thread applies what it sees, and is in the midst of it for ``left`` steps."""
        if self.lock.pump is None:
            pump = SuspendedPump(self.agent.pump, at, left)
            if not pump.is_over:
                self.lock.pump = pump
                self._events["a write is under way for a while"] += 1

    def tick(self, desk: Desk) -> None:
        """Time passes for requests, the lease, and a write under way."""
        if self.gone:
            return
        self.cut_off -= self.cut_off > 0
        self.crowded_for -= 1
        if self.crowded_for == 0:
            self.agent._stager._area._room = Room(1 << 20, 1 << 20, self._folder / self.name)
        if self.frozen and self.cut_off:
            return
        self.serving.tick()
        self.renewals.tick(desk, cut_off=self.cut_off > 0)
        if self.lock.pump is not None:
            self.lock.pump.left -= 1
            if self.lock.pump.left <= 0:
                self._events["a write under way came to its end by itself"] += 1
                self.lock.wait_for_pump()
