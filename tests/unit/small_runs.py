"""A run in one thread whose receivers serve under leases: real owners, agents, gates, service; fake clock."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dcr.codec import decode_payload
from dcr.commit.context import Roster, TransitionReport
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.driver import Driver
from dcr.commit.remote import Departures
from dcr.commit.service import CoordinatorService
from dcr.config import CodecConfig, CommitConfig
from dcr.errors import Conflict, Unreachable
from dcr.model import Bits, ControlState, Encoding, Manifest, PathClass, TensorSpec, new_nonce
from dcr.receiver.agent import ReceiverAgent
from dcr.receiver.gate import ServingGate
from dcr.receiver.lease import Lease
from dcr.testing.numpy_applier import NumpyApplier
from dcr.testing.toy_fleet import ToyFleet
from dcr.testing.toy_trainer import Placement, ToyTensor
from dcr.transport.object_transport import ObjectTransport

TENSORS = (
    ToyTensor(TensorSpec("split", (6, 2), "bfloat16"), Placement.ROWS),
    ToyTensor(TensorSpec("whole", (5,), "bfloat16"), Placement.REPLICATED),
)
NAMES = ("runtime-0", "runtime-1", "runtime-2")
CONFIG = CommitConfig(
    max_attempts=3, retry_pause_s=0.5, collect_deadline_s=0.0, fence_deadline_s=5.0,
    lease_s=10.0, lease_skew_s=1.0, evict_after_s=20.0,
)  # fmt: skip
Words = dict[str, Bits]


def words(step: int) -> Words:
    """What training step ``step`` makes: two elements of each tensor change at every step."""
    made: Words = {}
    for tensor in TENSORS:
        size = tensor.spec.num_elements
        made[tensor.spec.name] = np.arange(size, dtype="<u2")
        for past in range(1, step + 1):
            made[tensor.spec.name][[past % size, (3 * past) % size]] ^= 1 << past % 16
    return made


class Clock:
    """Seconds that pass when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


class Receiver:
    """One runtime process. ``stopped``: it answers nobody and does nothing, but keeps what it has."""

    def __init__(self, name: str, fleet: ToyFleet, clock: Clock, *, leased: bool = True) -> None:
        self.name, self.stopped = name, False
        catalogue = fleet.catalogue
        self.resident: Words = {s.name: np.full(s.num_elements, 0xDEAD, "<u2") for s in catalogue.tensors}
        self.lease = Lease(clock)
        self.gate = ServingGate(admit_deadline_s=0.0, lease=self.lease if leased else None)
        self.agent = ReceiverAgent(
            name,
            NumpyApplier(catalogue, self.resident, PathClass.XOR),
            self.gate,
            transport=ObjectTransport(fleet.store, catalogue.run),
            archive=fleet.archive,
            catalogue=catalogue,
            incarnation=new_nonce(),
        )

    def holds(self, wanted: Words) -> bool:
        return all(np.array_equal(self.resident[name], bits) for name, bits in wanted.items())

    def served(self) -> int | None:
        """Version that a request is answered with; None: it is not."""
        with suppress(Unreachable), self.gate.enter() as version:
            return version
        return None


@dataclass(slots=True)
class SmallRun:
    """Two trainer ranks, a service, and ``receivers`` by name. ``before``: called in front of such a call."""

    folder: Path
    config: CommitConfig = field(default_factory=lambda: CONFIG)
    clock: Clock = field(default_factory=Clock)
    plane: MemoryControlPlane = field(default_factory=MemoryControlPlane)
    before: dict[tuple[str, str], Callable[[], object]] = field(default_factory=dict)
    departures: Departures = field(default_factory=Departures)
    step: int = 0
    fleet: ToyFleet = field(init=False)
    receivers: dict[str, Receiver] = field(init=False)
    service: CoordinatorService = field(init=False)

    def __post_init__(self) -> None:
        codec = CodecConfig(threads=1, dense_share=1.0)
        self.fleet = ToyFleet(self.folder, TENSORS, words(0), codec=codec)
        self.receivers = {}
        for name in NAMES:
            self.restart(name)
        self.service = self.new_service()

    def new_service(self) -> CoordinatorService:
        owners = tuple(f"owner-{rank}" for rank in range(len(self.fleet.owners)))
        driver = Driver(self.plane, self.fleet.archive, Endpoints(self), self.run_id, pause=self.clock.pass_)
        cast = Roster(owners, NAMES)
        return CoordinatorService(driver, self.config, cast, clock=self.clock, departures=self.departures)

    @property
    def run_id(self) -> str:
        return self.fleet.catalogue.run

    @property
    def state(self) -> ControlState:
        return self.plane.read(self.run_id)

    @property
    def served(self) -> list[int | None]:
        """By receiver, in the order of their names."""
        return [self.receivers[name].served() for name in sorted(self.receivers)]

    def begin(self) -> "SmallRun":
        """Create the run and let everybody in."""
        self.service.open_run(resume=False, catalogue=self.fleet.catalogue)
        for name in NAMES:
            self.service.admit(name)
        self.renew()
        return self

    def renew(self) -> list[str]:
        """What every running receiver's keeper does now and then; the names of those that were refused."""
        refused = []
        for name, receiver in self.receivers.items():
            if receiver.stopped:
                continue
            sent_s = self.clock()
            try:
                agent = receiver.agent
                grant = self.service.renew(name, agent.incarnation, agent.base)
            except Conflict:
                refused.append(name)
                continue
            receiver.lease.extend(sent_s + grant.seconds)
        return refused

    def leave(self, name: str) -> tuple[str, ...]:
        """Its process has ended its lease and asks; the members that remain."""
        receiver = self.receivers[name]
        receiver.lease.end()
        return self.service.leave(name, receiver.agent.incarnation)

    def sync(self) -> TransitionReport:
        """Train one step and publish it."""
        self.present()
        return self.service.transition(self.step, self.state.record.version)

    def present(self) -> None:
        self.step += 1
        self.fleet.write(words(self.step))
        for owner in self.fleet.owners:
            owner.present(self.step)

    def restart(self, name: str) -> None:
        """Another process takes the name."""
        leased = self.config.lease_s > 0
        self.receivers[name] = Receiver(name, self.fleet, self.clock, leased=leased)

    def check(self) -> None:
        """Nobody serves anything but what is committed, bit for bit."""
        record = self.state.record
        for receiver in self.receivers.values():
            if receiver.served() is not None:
                assert receiver.served() == record.version, f"{receiver.name} is stale"
                assert receiver.holds(words(record.step)), f"{receiver.name} serves other bits"


class Endpoints(Mapping[str, object]):
    """What the coordinator reaches, by name."""

    def __init__(self, run: SmallRun) -> None:
        self._run = run

    def __getitem__(self, name: str) -> object:  # type: ignore[explicit-override]
        if name in self._run.receivers or name.startswith("owner-"):
            return _Endpoint(name, self._run)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:  # type: ignore[explicit-override]
        return iter(self._run.receivers)

    def __len__(self) -> int:  # type: ignore[explicit-override]
        return len(self._run.receivers)


class _Endpoint:
    """A stopped party costs the caller its patience and answers nothing."""

    def __init__(self, name: str, run: SmallRun) -> None:
        self._name, self._run = name, run

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(**params: object) -> Any:
            run = self._run
            if hook := run.before.pop((self._name, method), None):
                hook()
            party: Any
            if self._name.startswith("owner-"):
                party = run.fleet.owners[int(self._name.removeprefix("owner-"))]
            else:
                receiver = run.receivers[self._name]
                if receiver.stopped:
                    run.clock.pass_(run.config.patience_s(run.config.fence_deadline_s))
                    run.renew()
                    raise Unreachable(f"{self._name} does not answer")
                party = receiver.agent
            return getattr(party, method)(**params)

        return call


def encodings(run: SmallRun, manifest: Manifest) -> set[Encoding]:
    """Of every item that the manifest lists."""
    payloads = (run.fleet.archive.get_payload(manifest, ref) for ref in manifest.payloads)
    return {item.encoding for payload in payloads for item in decode_payload(payload).items}
