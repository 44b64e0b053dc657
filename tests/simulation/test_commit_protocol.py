"""Deterministic simulation of Algorithm B.2 on the real scripts and agents.

Every order, loss, delay, repetition and crash is a Hypothesis choice. A shrunk failure prints as
a straight-line program. Faults have a budget and ``drain`` ends most runs, or no run would ever
commit; the events tell how often which kind of commit was reached.
"""

import sys

from hypothesis import event, note
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from dcr.commit.effects import CompareAndSet, Gather
from tests.simulation.coordinators import Coordinator
from tests.simulation.parties import NUM_OWNERS, Tensors
from tests.simulation.world import RECEIVERS, World, copy_of

MAX_FAULTS = 8
MAX_DRAIN_STEPS = 600
WORDS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 0xFFFF)), max_size=3)


class CommitProtocol(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.coordinators: list[Coordinator] = []
        self.faults = 0
        self.commits = 0

    @initialize()
    def first_coordinator(self) -> None:
        self._start()

    # ---- without faults ----

    @precondition(lambda self: self.world.trainer.request is None)
    @rule(flips=WORDS)
    def train(self, flips: list[tuple[int, int]]) -> None:
        self.world.train(self._flipped(flips))

    @rule(data=st.data(), steps=st.integers(1, 25))
    def progress(self, data: st.DataObject, steps: int) -> None:
        """One coordinator goes on for a while; its calls are answered in any order."""
        coordinator = data.draw(st.sampled_from(self.coordinators))
        for _ in range(steps):
            if coordinator.dead or not self._wake(coordinator):
                return
            if len(coordinator.pending) > 1:
                call = data.draw(st.sampled_from(coordinator.pending), "next answered")
                coordinator.answer(call, self.world.deliver(call))
            else:
                coordinator.perform()
            self.check()

    @rule(i=st.integers(0, len(RECEIVERS) - 1))
    def pump(self, i: int) -> None:
        """A receiver applies what is visible before it is asked to finish."""
        self.world.receivers[i].agent.pump()

    @rule(i=st.integers(0, len(RECEIVERS) - 1), data=st.data())
    def ask_to_be_admitted(self, i: int, data: st.DataObject) -> None:
        coordinator = data.draw(st.sampled_from(self.coordinators))
        if not coordinator.dead and coordinator.script is None:
            coordinator.ask_admit(RECEIVERS[i])

    # ---- faults ----

    @precondition(lambda self: self.faults < MAX_FAULTS and self._gathering())
    @rule(data=st.data(), executed=st.booleans(), late=st.booleans(), crash_at=st.integers(0, 12))
    def lose_call(self, data: st.DataObject, executed: bool, late: bool, crash_at: int) -> None:
        self.faults += 1
        coordinator = data.draw(st.sampled_from(self._gathering()))
        call = data.draw(st.sampled_from(coordinator.pending))
        note(f"{call.method} at {call.target} is lost")
        coordinator.lose_call(call, executed=executed, late=late, crash_at=crash_at)

    @precondition(lambda self: self.faults < MAX_FAULTS and self._gathering())
    @rule(data=st.data())
    def answer_and_keep_a_copy(self, data: st.DataObject) -> None:
        self.faults += 1
        coordinator = data.draw(st.sampled_from(self._gathering()))
        call = data.draw(st.sampled_from(coordinator.pending))
        self.world.late_calls.append(call)
        coordinator.answer(call, self.world.deliver(call))

    @precondition(lambda self: self.world.late_calls)
    @rule(data=st.data(), again=st.booleans())
    def late_call_arrives(self, data: st.DataObject, again: bool) -> None:
        call = data.draw(st.sampled_from(self.world.late_calls))
        note(f"late {call.method} at {call.target}: {call.params.get('attempt')}")
        if not again or self.faults >= MAX_FAULTS:
            self.world.late_calls.remove(call)
        self.faults += again
        self.world.deliver(call)

    @precondition(lambda self: self.faults < MAX_FAULTS and self._writing())
    @rule(data=st.data(), landed=st.booleans(), late=st.booleans())
    def lose_write(self, data: st.DataObject, landed: bool, late: bool) -> None:
        self.faults += 1
        coordinator = data.draw(st.sampled_from(self._writing()))
        coordinator.lose_write(landed=landed, late=late)

    @precondition(lambda self: self.faults < MAX_FAULTS)
    @rule(data=st.data(), landed=st.booleans(), late=st.booleans())
    def lose_commit(self, data: st.DataObject, landed: bool, late: bool) -> None:
        """The one write whose answer matters: go on until it is next, then lose its answer."""
        coordinator = data.draw(st.sampled_from(self.coordinators))
        for _ in range(MAX_DRAIN_STEPS):
            if coordinator.dead or not self._wake(coordinator):
                return
            effect = coordinator.effect
            if isinstance(effect, CompareAndSet) and effect.state.record != effect.expected.record:
                self.faults += 1
                coordinator.lose_write(landed=landed, late=late)
                return
            coordinator.perform()
            self.check()

    @precondition(lambda self: self.world.late_writes)
    @rule(data=st.data())
    def late_write_arrives(self, data: st.DataObject) -> None:
        i = data.draw(st.integers(0, len(self.world.late_writes) - 1))
        self.world.write(self.world.late_writes.pop(i))

    @precondition(lambda self: self.faults < MAX_FAULTS)
    @rule(i=st.integers(0, len(RECEIVERS) - 1))
    def crash_receiver(self, i: int) -> None:
        self.faults += 1
        self.world.receivers[i].start()

    @precondition(lambda self: self.faults < MAX_FAULTS)
    @rule(rank=st.integers(0, NUM_OWNERS - 1), flips=WORDS)
    def crash_owner(self, rank: int, flips: list[tuple[int, int]]) -> None:
        self.faults += 1
        self.world.restart_owner(rank, self._flipped(flips) if flips else None)

    @precondition(lambda self: self.faults < MAX_FAULTS)
    @rule(flips=WORDS)
    def crash_trainer(self, flips: list[tuple[int, int]]) -> None:
        self.faults += 1
        self.world.restart_trainer(self._flipped(flips) if flips else None)

    @precondition(lambda self: self.faults < MAX_FAULTS)
    @rule(data=st.data(), late=st.booleans())
    def crash_coordinator(self, data: st.DataObject, late: bool) -> None:
        """Its calls may still arrive; another one, which it may not know of, takes over."""
        self.faults += 1
        coordinator = data.draw(st.sampled_from(self.coordinators))
        if late:
            self.world.late_calls += coordinator.pending
        coordinator.dead = True
        self._start()

    @precondition(lambda self: self.faults < MAX_FAULTS and len(self._alive()) < 2)
    @rule()
    def second_coordinator(self) -> None:
        self.faults += 1
        self._start()

    # ---- the common case ----

    @rule()
    def drain(self) -> None:
        """Without further faults a transition reaches its commit, and everybody serves it."""
        before = self.world.state.record.version
        if self.world.trainer.request is None:
            self.world.train(self._flipped([(before % 8, 1)]))
        if any(owner.agent.collect(None).step is None for owner in self.world.owners):
            self.world.restart_trainer()
        coordinator = self._latest()
        for _ in range(MAX_DRAIN_STEPS):
            if self.world.trainer.request is None and coordinator.script is None:
                break
            if coordinator.dead:
                coordinator = self._start()
            if self._wake(coordinator):
                coordinator.perform()
            self.check()
        assert self.world.trainer.request is None, "no faults, and yet no commit"
        if coordinator.last_attempts:
            event(f"drained to a commit on try {coordinator.last_attempts}")

    @invariant()
    def check(self) -> None:
        self.world.check()
        self.commits = len(self.world.truth) - 1

    def teardown(self) -> None:  # type: ignore[explicit-override]  # typing.override: 3.12
        try:
            if sys.exc_info()[0] is None:
                self._finish()
        finally:
            self.world.close()

    def _finish(self) -> None:
        self.drain()
        self.drain()  # a whole transition without any fault
        self.world.check_finished()
        event(f"commits: {min(self.commits, 6)}")
        event(f"faults: {self.faults}")

    # ---- helpers ----

    def _start(self) -> Coordinator:
        coordinator = Coordinator(self.world, self.world.context())
        coordinator.start()
        self.coordinators.append(coordinator)
        return coordinator

    def _wake(self, coordinator: Coordinator) -> bool:
        """Let an idle coordinator take the trainer's request; whether it has something to do."""
        request = self.world.trainer.request
        if coordinator.script is None and request is not None:
            coordinator.ask(request)
        return coordinator.script is not None

    def _alive(self) -> list[Coordinator]:
        return [coordinator for coordinator in self.coordinators if not coordinator.dead]

    def _latest(self) -> Coordinator:
        alive = self._alive()
        return alive[-1] if alive else self._start()

    def _gathering(self) -> list[Coordinator]:
        return [one for one in self._alive() if isinstance(one.effect, Gather)]

    def _writing(self) -> list[Coordinator]:
        return [one for one in self._alive() if isinstance(one.effect, CompareAndSet)]

    def _flipped(self, flips: list[tuple[int, int]]) -> Tensors:
        """The committed words with some bits flipped: a next optimizer step."""
        words = copy_of(self.world.truth[self.world.state.record.version])
        for index, mask in flips:
            name, offset = ("split", index) if index < 6 else ("whole", index - 6)
            words[name][offset] ^= mask
        return words


TestCommitProtocol = CommitProtocol.TestCase
