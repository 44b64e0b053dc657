"""The simulated world: real agents and scripts, a register, and the truth about every version.

Truth is kept apart from the code under test: version v is what the owners of the committed
candidate had presented, element by element.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from dcr.commit.context import Context, Request
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.driver import Driver
from dcr.commit.effects import Call, CompareAndSet
from dcr.commit.lifecycle import FIRST_EPOCH, create_run
from dcr.config import CommitConfig
from dcr.errors import Conflict
from dcr.model import (
    ApplyAck,
    AttemptId,
    CandidateId,
    ControlState,
    StagedAck,
)
from dcr.transport.archive import StoreArchive
from tests.simulation import invariants
from tests.simulation.clocks import EVICT_AFTER_S, LEASE_S, SKEW_S, Clock, WorldTime
from tests.simulation.owners import Owner
from tests.simulation.parties import CATALOGUE, NUM_OWNERS, Crash, Tensors, call, fresh_words, lost
from tests.simulation.receivers import Receiver
from tests.simulation.stores import TRACKER_DISKS, FillingStore

if TYPE_CHECKING:
    from tests.simulation.leases import Desk

RUN = CATALOGUE.run
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # Linux; else the default folder
RECEIVERS = ("runtime-0", "runtime-1")
NEWCOMER = "runtime-2"
"""No member at the beginning, and nobody's process until it is started."""
NAMES = (*RECEIVERS, NEWCOMER)
DEADLINE_S = 10.0
"""What a call takes that misses its deadline."""


@dataclass(slots=True)
class Trainer:
    """What the training loop wants: ``request`` is unanswered, ``words`` are its candidate."""

    step: int = 0
    request: Request | None = None
    words: Tensors = field(default_factory=dict)


@dataclass(slots=True)
class Late:
    """A message that takes ``delay`` more steps; receivers may apply what they see right after it."""

    message: Call | CompareAndSet
    delay: int
    pumped: bool = False


def moves_record(write: CompareAndSet) -> bool:
    """Whether this is a commit."""
    return write.state.record != write.expected.record


class World:
    """Everything but the coordinators. ``events`` counts the states that were reached."""

    def __init__(
        self, max_attempts: int = 2, rates: Sequence[float] = (1.0,) * 4, mode: str = "sync"
    ) -> None:
        """``rates``: how fast the clocks of coordinators (the first) and receivers run."""
        self.config = CommitConfig(
            mode=mode, collect_deadline_s=0.0, max_attempts=max_attempts, retry_pause_s=0.0,
            lease_s=LEASE_S, lease_skew_s=SKEW_S, evict_after_s=EVICT_AFTER_S,
        )  # fmt: skip
        self.time = WorldTime()
        self.desk: Desk = lambda: None
        self._rate = rates[0]
        self.events: Counter[str] = Counter()
        self.num_steps = 0
        self.folder = Path(tempfile.mkdtemp(prefix="dcr-simulation-", dir=IN_MEMORY))
        TRACKER_DISKS.full, TRACKER_DISKS.events = set(), self.events
        self.store = FillingStore(self.events)
        self.archive = StoreArchive(self.store, RUN)
        self.plane = MemoryControlPlane()
        ranks = range(NUM_OWNERS)
        self.owners = [Owner(rank, self.folder, self.store, fresh_words(), self.events) for rank in ranks]
        self.receivers = [
            Receiver(name, self.store, self.folder, self.time, rate, self.events)
            for name, rate in zip(NAMES, rates[1:], strict=True)
        ]
        self.trainer = Trainer(words=fresh_words())
        self.truth: dict[int, Tensors] = {0: fresh_words()}
        self.given_up: set[AttemptId] = set()
        self.acks: dict[AttemptId, dict[str, str]] = {}
        self.late: list[Late] = []
        self.full_for = 0
        self._nonces = count()
        self._create()
        for receiver in self.receivers[: len(RECEIVERS)]:
            receiver.start()

    def __repr__(self) -> str:  # type: ignore[explicit-override]  # typing.override: 3.12
        state = self.state
        receivers = ", ".join(map(repr, self.receivers))
        return f"version {state.record.version}, members {state.members}, active {state.active}; {receivers}"

    def close(self) -> None:
        """Remove the tracker files, end what is under way."""
        for receiver in self.receivers:
            receiver.end()
        shutil.rmtree(self.folder)

    def context(self) -> Context:
        """What a coordinator starts with; resuming gives it its epoch."""
        owners = tuple(owner.name for owner in self.owners)
        clock = Clock(self.time, 1e6 * next(self._nonces), self._rate)
        return Context(RUN, FIRST_EPOCH, owners, RECEIVERS, CATALOGUE, self.config, self.nonce, clock)

    def nonce(self) -> str:
        """Deterministic, and unique in this world."""
        return f"n{next(self._nonces)}"

    @property
    def state(self) -> ControlState:
        """The register's value."""
        return self.plane.read(RUN)

    # ---- trainer ----

    def train(self, words: Tensors) -> None:
        """The next optimizer step on every rank, and the request that follows it."""
        trainer = self.trainer
        assert trainer.request is None
        trainer.step += 1
        trainer.words = words
        trainer.request = Request(trainer.step, self.state.record.version, self.owners[0].incarnation)
        for owner in self.owners:
            owner.present(trainer.step, words)

    def answered(self, request: Request) -> None:
        """The trainer hears that ``request`` was committed, and goes on."""
        if self.trainer.request == request:
            self.trainer.request = None
            for owner in self.owners:
                owner.agent.withdraw()

    def look_up(self) -> None:
        """After a Conflict the trainer reads the record: is its step committed?"""
        request = self.trainer.request
        if request is not None and self.state.record.version != request.parent_version:
            self.answered(request)

    def restart_owner(self, rank: int, words: Tensors | None = None) -> None:
        """A rank dies and starts again; its optimizer step may come out as other ``words``."""
        owner, request = self.owners[rank], self.trainer.request
        TRACKER_DISKS.full.discard(owner.folder)  # without space it would not start
        owner.start(self.trainer.words)
        if request is None:
            return
        if self.state.record.version == request.parent_version:
            self.events["came back with other weights"] += words is not None
            owner.present(request.step, words or self.trainer.words)
        if rank == 0:
            self.trainer.request = replace(request, requester=owner.incarnation)

    def restart_trainer(self, words: Tensors | None = None) -> None:
        """All ranks die; what they had asked for is looked up in the record."""
        self.look_up()
        for rank in range(NUM_OWNERS):
            self.restart_owner(rank, words)

    # ---- messages ----

    def deliver(self, message: Call, crash_at: int = 0) -> object:
        """Execute a call at its endpoint; a crash loses answer and process."""
        if message.target in NAMES:
            return self._deliver_to_receiver(self.receiver(message.target), message, crash_at)
        owner = next(owner for owner in self.owners if owner.name == message.target)
        try:
            return call(owner.agent, message.method, message.params, crash_at)
        except Crash:
            self.events[f"died inside {message.method}"] += 1
            self.restart_owner(owner.rank)
            return lost()

    def receiver(self, name: str) -> Receiver:
        """By name."""
        return self.receivers[NAMES.index(name)]

    def miss_deadline(self) -> object:
        """The answer that a call without answer gets, after a while."""
        self.time.now += DEADLINE_S
        return lost()

    def _deliver_to_receiver(self, receiver: Receiver, message: Call, crash_at: int) -> object:
        if receiver.gone or receiver.cut_off:
            if receiver.frozen:  # it waits at the door
                self.late.append(Late(message, receiver.cut_off + 1))
            return self.miss_deadline()
        self._note_call(message)
        answer = receiver.deliver(message.method, message.params, crash_at)
        if isinstance(answer, StagedAck):
            self.events["staged"] += 1
            self.events["staged payloads of earlier attempts"] += answer.num_reused > 0
            self.events["staged on disk"] += answer.spilled_bytes > 0
        if isinstance(answer, ApplyAck):
            self.acks.setdefault(answer.attempt, {})[receiver.name] = receiver.incarnation
        return answer

    def tick(self, seconds: float = 1.0) -> None:
        """Time passes: what was late may arrive now."""
        self.time.now += seconds
        for receiver in self.receivers:
            receiver.tick(self.desk)
        self.full_for -= 1
        if self.full_for == 0:
            self.empty_disks()
        for late in self.late:
            late.delay -= 1
        for late in [late for late in self.late if late.delay <= 0]:
            self.late.remove(late)
            self._arrive(late)

    def empty_disks(self) -> None:
        """There is space again."""
        self.store.empty()
        TRACKER_DISKS.full.clear()

    def start_all(self) -> None:
        """Every receiver has a process, and can be reached at once."""
        for receiver in self.receivers:
            receiver.cut_off = 0
            if receiver.gone:
                receiver.start()
            receiver.renewals.delays = (0, 0, 0)

    def asking(self) -> list[str]:
        """Receivers that want to be admitted."""
        return [one.name for one in self.receivers if not one.gone and one.renewals.wants_admission]

    def everybody_serves(self) -> bool:
        """Whether every process serves."""
        return all(one.gone or one.serving.gate.is_open for one in self.receivers)

    def arrive_all(self) -> None:
        """Nothing is under way any more."""
        while self.late:
            self._arrive(self.late.pop(0))
        for receiver in self.receivers:
            receiver.lock.wait_for_pump()
            receiver.serving.end_all()
        self.check()

    def write(self, effect: CompareAndSet) -> Conflict | None:
        """Carry out a compare-and-set, and check every commit as it happens."""
        before = self.state
        try:
            self.plane.compare_and_set(effect.expected, effect.state)
        except Conflict as err:
            return err
        self._note_write(before, effect.state)
        if effect.state.record != before.record:
            invariants.check_commit(self, before, effect.state)
        return None

    def _arrive(self, late: Late) -> None:
        if isinstance(late.message, Call):
            self.deliver(late.message)
        else:
            refused = self.write(late.message)
            if moves_record(late.message):
                self.events[f"late commit {'refused' if refused else 'took effect'}"] += 1
        for receiver in self.receivers if late.pumped else ():
            if not receiver.gone:
                receiver.pump()
        self.check()

    def _note_call(self, message: Call) -> None:
        active = self.state.active
        if message.method == "restore" and active is not None:
            self.events["restore during a transition"] += 1
        if message.method == "stage" and active is not None:
            self.events["stage again, nothing opened"] += message.params["since"] < active.attempt.number

    def _note_write(self, before: ControlState, after: ControlState) -> None:
        old, new = before.active, after.active
        if after.epoch != before.epoch:
            self.events["takeover"] += 1
            self.events["takeover in the middle of an attempt"] += old is not None
            self.events["takeover of an opened attempt"] += old is not None and old.opened
        self.events["join"] += len(set(after.members) - set(before.members))
        for name in set(before.members) - set(after.members):
            gone = self.receiver(name).gone
            self.events["leave" if gone else "eviction of one that runs"] += 1
        if old is not None and new is not None and old.attempt != new.attempt:
            self.events["retry"] += 1
            self.events["retry under the opened mark"] += new.opened
            self.events["opened candidate replaced"] += old.opened and old.candidate != new.candidate

    def check(self) -> None:
        """Every invariant; see ``invariants``."""
        self.num_steps += 1
        invariants.check(self)

    def presented_by(self, candidate: CandidateId) -> Tensors:
        """What the owners of that candidate had presented."""
        words = fresh_words()
        for owner, incarnation in zip(self.owners, candidate.incarnations, strict=True):
            owner.shard_of(owner.presented[incarnation, candidate.step], words)
        return words

    def _create(self) -> None:
        endpoints = {owner.name: owner.agent for owner in self.owners}
        driver = Driver(self.plane, self.archive, endpoints, RUN)
        driver.execute(create_run(self.context(), 0))
