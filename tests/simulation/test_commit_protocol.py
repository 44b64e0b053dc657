"""Deterministic simulation of Algorithm B.2 on the real scripts and agents.

Every order, loss, delay, repetition and crash is a Hypothesis choice. A shrunk failure prints as
a straight-line program. Every rule first lets a coordinator go on for a while, faults have a
budget and each run is drained at its end: else no run would ever commit. The events tell how
often which kind of commit was reached.
"""

import sys
from collections.abc import Callable, Sequence

from hypothesis import event, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dcr.commit.effects import CompareAndSet, Effect, Gather
from tests.simulation.coordinators import Coordinator
from tests.simulation.parties import NUM_OWNERS, Tensors
from tests.simulation.world import RECEIVERS, Late, World, copy_of

MAX_FAULTS = 8
MAX_DRAIN_STEPS = 600
FLIPS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 0xFFFF)), min_size=1, max_size=3)
STEPS = st.just(0) | st.integers(0, 30)  # a transition without faults takes about 26
LATE = st.tuples(st.integers(1, 40), st.booleans())  # steps until it arrives; receivers pump after it
CRASH_AT = st.integers(0, 12)  # 0: not at all
RECEIVER = st.integers(0, len(RECEIVERS) - 1)
RANK = st.integers(0, NUM_OWNERS - 1)


FREE = ("pump", "ask_to_be_admitted", "train", "drain")
DISTURBANCES = (
    "crash_node", "lose_commit", "crash_owner", "lose_call", "delay_call", "repeat_call", "crash_trainer",
    "lose_write", "crash_receiver", "crash_coordinator", "second_coordinator", *FREE,
)  # fmt: skip
PLAN = st.lists(st.tuples(STEPS, st.sampled_from(DISTURBANCES)), min_size=2, max_size=5)


def is_commit(effect: Effect | None) -> bool:
    """Whether the effect is the write that moves the record."""
    return isinstance(effect, CompareAndSet) and effect.state.record != effect.expected.record


def has_call(effect: Effect | None, method: str) -> bool:
    """Whether the effect calls ``method``."""
    return isinstance(effect, Gather) and any(call.method == method for call in effect.calls)


class CommitProtocol(RuleBasedStateMachine):
    @initialize(max_attempts=st.integers(1, 3))
    def start(self, max_attempts: int) -> None:
        self.world = World(max_attempts)
        self.coordinators: list[Coordinator] = []
        self.faults = 0
        self._start()

    @rule(data=st.data(), plan=PLAN)
    def disturb(self, data: st.DataObject, plan: list[tuple[int, str]]) -> None:
        """One rule for all, so that none is crowded out; those that cost count against the budget."""
        for steps, kind in plan:
            coordinator = self._advance(data, steps)
            if coordinator is not None and (kind in FREE or self.faults < MAX_FAULTS):
                self.faults += kind not in FREE
                note(f"{kind} after {steps} steps")
                getattr(self, kind)(data, coordinator)
                self.world.tick()
            self.check()

    # ---- disturbances ----

    def train(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """An optimizer step that changes little, the same word twice, or nothing (P15)."""
        self._train(data.draw(FLIPS))

    def pump(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """A receiver applies what is visible before it is asked to finish."""
        self.world.pump(data.draw(RECEIVER))

    def ask_to_be_admitted(self, data: st.DataObject, coordinator: Coordinator) -> None:
        if coordinator.script is None:
            coordinator.ask_admit(RECEIVERS[data.draw(RECEIVER)])

    def lose_call(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """The answer of one of the next calls is lost; the call too, or its endpoint dies in it."""
        if self._reach(coordinator, lambda effect: isinstance(effect, Gather)):
            call = data.draw(st.sampled_from(coordinator.pending), "lost")
            executed, crash_at = data.draw(st.tuples(st.booleans(), CRASH_AT), "executed, crash at")
            coordinator.lose_call(call, executed=executed, crash_at=crash_at)

    def delay_call(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """One of the next calls misses its deadline and arrives later."""
        if self._reach(coordinator, lambda effect: isinstance(effect, Gather)):
            call = data.draw(st.sampled_from(coordinator.pending), "late")
            self.world.late.append(Late(call, *data.draw(LATE)))
            coordinator.lose_call(call, executed=False, crash_at=0)

    def repeat_call(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """One of the next calls is answered, and a copy of it arrives later."""
        if self._reach(coordinator, lambda effect: isinstance(effect, Gather)):
            call = data.draw(st.sampled_from(coordinator.pending), "repeated later")
            self.world.late.append(Late(call, *data.draw(LATE)))
            coordinator.answer(call, self.world.deliver(call))

    def lose_write(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """The next write loses its answer: it took effect, will later, or never will."""
        if self._reach(coordinator, lambda effect: isinstance(effect, CompareAndSet)):
            self._lose_write(data, coordinator)

    def lose_commit(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """The one write whose answer matters."""
        if self._reach(coordinator, is_commit):
            self._lose_write(data, coordinator)

    def _lose_write(self, data: st.DataObject, coordinator: Coordinator) -> None:
        landed = data.draw(st.booleans(), "landed")
        coordinator.lose_write(landed=landed, delay=0 if landed else data.draw(st.integers(0, 30), "delay"))

    def crash_receiver(self, data: st.DataObject, coordinator: Coordinator) -> None:
        self.world.receivers[data.draw(RECEIVER)].start()

    def crash_owner(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """It comes back with the same step's weights, as they were or, with flips, others."""
        self.world.restart_owner(data.draw(RANK, "rank"), self._other_weights(data))

    def crash_trainer(self, data: st.DataObject, coordinator: Coordinator) -> None:
        self.world.restart_trainer(self._other_weights(data))

    def crash_coordinator(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """Its calls may still arrive; another one takes over."""
        for call in coordinator.pending if data.draw(st.booleans(), "late") else ():
            self.world.late.append(Late(call, *data.draw(LATE)))
        coordinator.dead = True
        self._start()

    def crash_node(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """Coordinator and trainer die when an attempt is published; its opening is still under way."""
        if self._reach(coordinator, lambda effect: has_call(effect, "open_apply")):
            for call in coordinator.pending:
                if call.method == "open_apply":
                    self.world.late.append(Late(call, *data.draw(LATE)))
                else:
                    self.world.deliver(call)
            coordinator.dead = True
            self.world.restart_trainer(self._other_weights(data))
            self._start()

    def second_coordinator(self, data: st.DataObject, coordinator: Coordinator) -> None:
        """It takes over from one that lives and knows nothing of it."""
        if len(self._alive()) < 2:
            self._start()

    # ---- the common case ----

    def drain(self, data: st.DataObject | None = None, coordinator: Coordinator | None = None) -> None:
        """Without further faults a transition reaches its commit, and everybody serves it."""
        self._train()
        if any(owner.agent.collect(None).step is None for owner in self.world.owners):
            self.world.restart_trainer()
        alive = self._alive()
        coordinator = alive[-1] if alive else self._start()
        for _ in range(MAX_DRAIN_STEPS):
            if self.world.trainer.request is None and coordinator.script is None:
                break
            if coordinator.dead:
                coordinator = self._start()
            if self._wake(coordinator):
                coordinator.perform()
            self.world.tick()
            self.check()
        assert self.world.trainer.request is None, "no faults, and yet no commit"
        event(f"drained to a commit on try {coordinator.last_attempts}")

    @invariant()
    def check(self) -> None:
        self.world.check()

    def teardown(self) -> None:  # type: ignore[explicit-override]  # typing.override: 3.12
        if not hasattr(self, "world"):
            return
        try:
            if sys.exc_info()[0] is None:
                self._finish()
        finally:
            self.world.close()

    def _finish(self) -> None:
        self.drain()
        self.world.arrive_all()
        self.drain()  # a whole transition without any fault
        self.world.check_finished()
        event(f"commits: {min(len(self.world.truth) - 1, 10)}")
        event(f"faults: {self.faults}")

    # ---- helpers ----

    def _start(self) -> Coordinator:
        coordinator = Coordinator(self.world, self.world.context())
        coordinator.start()
        self.coordinators.append(coordinator)
        return coordinator

    def _advance(self, data: st.DataObject, steps: int) -> Coordinator | None:
        """One living coordinator goes on; its calls are answered in any order."""
        coordinator = self._pick(data, self._alive())
        if steps and coordinator is not None and coordinator.script is None:
            self._train()
        for _ in range(steps):
            if coordinator is None or coordinator.dead or not self._wake(coordinator):
                break
            if len(coordinator.pending) > 1:
                call = data.draw(st.sampled_from(coordinator.pending), "next answered")
                coordinator.answer(call, self.world.deliver(call))
            else:
                coordinator.perform()
            self.world.tick()
            self.check()
        return coordinator

    def _reach(self, coordinator: Coordinator, wanted: Callable[[Effect | None], bool]) -> bool:
        """Go on until such an effect is next."""
        self._train()
        for _ in range(MAX_DRAIN_STEPS):
            if coordinator.dead or not self._wake(coordinator):
                return False
            if wanted(coordinator.effect):
                return True
            coordinator.perform()
            self.world.tick()
            self.check()
        return False

    def _train(self, flips: Sequence[tuple[int, int]] = ()) -> None:
        """The next optimizer step, unless the last one is not committed yet."""
        if self.world.trainer.request is None:
            self.world.train(self._flipped(flips or [(self.world.state.record.version % 8, 1)]))

    def _wake(self, coordinator: Coordinator) -> bool:
        """Let an idle coordinator take the trainer's request; whether it has something to do."""
        request = self.world.trainer.request
        if coordinator.script is None and request is not None:
            coordinator.ask(request)
        return coordinator.script is not None

    def _pick(self, data: st.DataObject, some: list[Coordinator]) -> Coordinator | None:
        return data.draw(st.sampled_from(some)) if some else None

    def _alive(self) -> list[Coordinator]:
        return [coordinator for coordinator in self.coordinators if not coordinator.dead]

    def _other_weights(self, data: st.DataObject) -> Tensors | None:
        """What a restarted trainer makes of the same step: the same again (None), or not."""
        return None if data.draw(st.booleans(), "same weights") else self._flipped(data.draw(FLIPS))

    def _flipped(self, flips: Sequence[tuple[int, int]]) -> Tensors:
        """The committed words with some bits flipped: a next optimizer step."""
        words = copy_of(self.world.truth[self.world.state.record.version])
        for index, mask in flips:
            name, offset = ("split", index) if index < 6 else ("whole", index - 6)
            words[name][offset] ^= mask
        return words


TestCommitProtocol = CommitProtocol.TestCase
