"""The simulated world: real agents and scripts, a register, and the truth about every version.

Truth is kept apart from the code under test: version v is what the owners of the committed
candidate had presented, element by element.
"""

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import numpy as np

from dcr.commit.context import Context, Request
from dcr.commit.control_plane.memory import MemoryControlPlane
from dcr.commit.driver import Driver
from dcr.commit.effects import Call, CompareAndSet
from dcr.commit.lifecycle import FIRST_EPOCH, create_run
from dcr.config import CommitConfig
from dcr.errors import Conflict, RefitError
from dcr.model import ApplyAck, AttemptId, CandidateId, ControlState, ReceiverState
from dcr.transport.archive import StoreArchive
from dcr.transport.memory import MemoryStore
from dcr.transport.replay import replay
from tests.simulation.parties import CATALOGUE, NUM_OWNERS, Crash, Owner, Receiver, Tensors, call, lost

RUN = CATALOGUE.run
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # Linux; else the default folder
RECEIVERS = ("runtime-0", "runtime-1")


def fresh_words(seed: int = 0) -> Tensors:
    """Words of version 0."""
    return {spec.name: np.arange(seed, seed + spec.num_elements, dtype="<u2") for spec in CATALOGUE.tensors}


def copy_of(words: Tensors) -> Tensors:
    """A deep copy."""
    return {name: array.copy() for name, array in words.items()}


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


class World:
    """Everything but the coordinators."""

    def __init__(self, max_attempts: int = 2) -> None:
        self.config = CommitConfig(collect_deadline_s=0.0, max_attempts=max_attempts, retry_pause_s=0.0)
        self.folder = Path(tempfile.mkdtemp(prefix="dcr-simulation-", dir=IN_MEMORY))
        self.store = MemoryStore()
        self.archive = StoreArchive(self.store, RUN)
        self.plane = MemoryControlPlane()
        self.owners = [Owner(rank, self.folder, self.store, fresh_words()) for rank in range(NUM_OWNERS)]
        self.receivers = [Receiver(name, self.store) for name in RECEIVERS]
        self.trainer = Trainer(words=fresh_words())
        self.truth: dict[int, Tensors] = {0: fresh_words()}
        self.given_up: set[AttemptId] = set()
        self.acks: dict[AttemptId, set[str]] = {}
        self.late: list[Late] = []
        self._nonces = count()
        self._create()

    def close(self) -> None:
        """Remove the tracker files."""
        shutil.rmtree(self.folder)

    def context(self) -> Context:
        """What a coordinator starts with; resuming gives it its epoch."""
        owners = tuple(owner.name for owner in self.owners)
        return Context(RUN, FIRST_EPOCH, owners, RECEIVERS, CATALOGUE, self.config, self.nonce)

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
        owner.start(self.trainer.words)
        if request is None:
            return
        if self.state.record.version == request.parent_version:
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
        for receiver in self.receivers:
            if receiver.name == message.target:
                try:
                    answer = call(receiver.agent, message.method, message.params, crash_at)
                except Crash:
                    receiver.start()
                    return lost()
                if isinstance(answer, ApplyAck):
                    self.acks.setdefault(answer.attempt, set()).add(receiver.name)
                return answer
        owner = next(owner for owner in self.owners if owner.name == message.target)
        try:
            return call(owner.agent, message.method, message.params, crash_at)
        except Crash:
            self.restart_owner(owner.rank)
            return lost()

    def pump(self, i: int) -> None:
        """A receiver's background thread applies what it sees; failing to fetch is no fault of it."""
        with suppress(RefitError):
            self.receivers[i].agent.pump()

    def tick(self) -> None:
        """Time passes: what was late may arrive now."""
        for late in self.late:
            late.delay -= 1
        for late in [late for late in self.late if late.delay <= 0]:
            self.late.remove(late)
            self._arrive(late)

    def arrive_all(self) -> None:
        """Nothing is under way any more."""
        while self.late:
            self._arrive(self.late.pop(0))

    def _arrive(self, late: Late) -> None:
        if isinstance(late.message, Call):
            self.deliver(late.message)
        else:
            self.write(late.message)
        for i in range(len(self.receivers)) if late.pumped else ():
            self.pump(i)
        self.check()

    def write(self, effect: CompareAndSet) -> Conflict | None:
        """Carry out a compare-and-set, and check every commit as it happens."""
        before = self.state
        try:
            self.plane.compare_and_set(effect.expected, effect.state)
        except Conflict as err:
            return err
        if effect.state.record != before.record:
            self._committed(before, effect.state)
        return None

    # ---- invariants ----

    def check(self) -> None:
        """What must hold after every step, whatever was lost, late, twice or killed."""
        for receiver in self.receivers:
            self._check_receiver(receiver)
        for owner in self.owners:
            self._check_owner(owner)

    def check_finished(self) -> None:
        """After a transition without faults everybody holds and serves what the record names."""
        record = self.state.record
        for receiver in self.receivers:
            assert receiver.gate.version == record.version, f"{receiver.name} does not serve"
        for owner in self.owners:
            assert owner.baseline.version == record.version, f"{owner.name} has not folded in"
        rebuilt = replay(self.archive, record, CATALOGUE)
        wanted = self.truth[record.version]
        assert all(np.array_equal(rebuilt[name], words) for name, words in wanted.items()), "chain"

    def _check_receiver(self, receiver: Receiver) -> None:
        serving, report = receiver.gate.version, receiver.agent.report()
        if serving is not None:
            assert serving in self.truth, f"{receiver.name} serves {serving}, which was never committed"
            assert receiver.holds(self.truth[serving]), f"{receiver.name} serves other bits than {serving}'s"
        if report.state is ReceiverState.CLEAN:
            assert report.version in self.truth, f"{receiver.name} calls {report.version} clean"
            assert receiver.holds(self.truth[report.version]), f"{receiver.name} is not clean"

    def _check_owner(self, owner: Owner) -> None:
        version = owner.baseline.version
        if version < 0:
            return
        assert version in self.truth, f"{owner.name} tracks {version}, which was never committed"
        wanted, held = copy_of(self.truth[version]), copy_of(self.truth[version])
        owner.tracked(held)
        for name, words in wanted.items():
            assert np.array_equal(held[name], words), (
                f"{owner.name}: tracker of {name} is not version {version}"
            )

    def _committed(self, before: ControlState, after: ControlState) -> None:
        record, active = after.record, before.active
        assert active is not None
        assert record.version == before.record.version + 1, "a version was lost or committed twice"
        assert record.attempt == active.attempt, "the record names an attempt that was replaced"
        assert record.attempt not in self.given_up, "what was reported as failed is committed"
        assert self.acks.get(record.attempt) == set(RECEIVERS), "committed before every receiver finished"
        self.truth[record.version] = self._assemble(active.candidate)
        for receiver in self.receivers:
            report = receiver.agent.report()
            if report.state is ReceiverState.COMPLETE and report.opened == record.attempt:
                assert receiver.holds(self.truth[record.version]), f"{receiver.name}: committed other bits"

    def _assemble(self, candidate: CandidateId) -> Tensors:
        words = fresh_words()
        for owner, incarnation in zip(self.owners, candidate.incarnations, strict=True):
            owner.shard_of(owner.presented[incarnation, candidate.step], words)
        return words

    def _create(self) -> None:
        endpoints = {owner.name: owner.agent for owner in self.owners}
        driver = Driver(self.plane, self.archive, endpoints, RUN)
        driver.execute(create_run(self.context(), 0))
