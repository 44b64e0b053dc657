"""A world with its coordinators, and what is needed to drive it: go on, go on until, drain."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from dcr.commit.context import Context
from dcr.commit.effects import CompareAndSet, Effect, Gather, StoreObject
from dcr.model import ControlState
from tests.simulation import invariants
from tests.simulation.coordinators import Coordinator
from tests.simulation.parties import Tensors, copy_of
from tests.simulation.world import World, moves_record

T = TypeVar("T")
MAX_DRAIN_STEPS = 1000
MAX_REACH_STEPS = 80
FLIPS = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 0xFFFF)), min_size=1, max_size=3)


class Draw(Protocol):
    """Hypothesis' choice."""

    def __call__(self, strategy: st.SearchStrategy[T], label: str | None = None) -> T: ...


def is_commit(effect: Effect | None) -> bool:
    """Whether the effect is the write that moves the record."""
    return isinstance(effect, CompareAndSet) and moves_record(effect)


def is_gather(effect: Effect | None) -> bool:
    """Whether the effect calls parties."""
    return isinstance(effect, Gather)


def is_store(effect: Effect | None) -> bool:
    """Whether the effect stores a manifest or an audit table."""
    return isinstance(effect, StoreObject)


def has_call(effect: Effect | None, method: str) -> bool:
    """Whether the effect calls ``method``."""
    return isinstance(effect, Gather) and any(call.method == method for call in effect.calls)


class Fleet:
    """Coordinators over one world. Invariants are checked after every step."""

    def __init__(self, max_attempts: int, rates: Sequence[float] = (1.0,) * 4, mode: str = "sync") -> None:
        self.world = World(max_attempts, rates, mode)
        self.world.desk = self._desk
        self.coordinators: list[Coordinator] = []
        self._num_asked = 0
        self.start()

    def start(self) -> Coordinator:
        """A new coordinator, which takes the run over."""
        coordinator = Coordinator(self.world, self.world.context())
        coordinator.start()
        self.coordinators.append(coordinator)
        return coordinator

    def alive(self) -> list[Coordinator]:
        """Those that have not found out that they were replaced."""
        return [coordinator for coordinator in self.coordinators if not coordinator.dead]

    def advance(self, draw: Draw, steps: int) -> Coordinator | None:
        """One living coordinator goes on; its calls are answered in any order."""
        alive = self.alive()
        coordinator = draw(st.sampled_from(alive)) if alive else None
        if steps and coordinator is not None and coordinator.script is None:
            self.train()
        for _ in range(steps):
            if coordinator is None or coordinator.dead or not self.wake(coordinator):
                break
            if len(coordinator.pending) > 1:
                call = draw(st.sampled_from(coordinator.pending), "next answered")
                coordinator.answer(call, self.world.deliver(call))
            else:
                coordinator.perform()
            self.tick()
        return coordinator

    def reach(
        self, coordinator: Coordinator, wanted: Callable[[Effect | None], bool], most: int = MAX_REACH_STEPS
    ) -> bool:
        """Go on without faults until such an effect is next."""
        self.train()
        for _ in range(most):
            if coordinator.dead or not self.wake(coordinator):
                return False
            if wanted(coordinator.effect):
                return True
            coordinator.perform()
            self.tick()
        return False

    def tick(self) -> None:
        """A step is over."""
        self.world.tick()
        self.world.check()

    def drain(self) -> None:
        """Without further faults a transition reaches its commit, and everybody serves it."""
        self.world.empty_disks()
        self.train()
        if any(owner.agent.collect(None).step is None for owner in self.world.owners):
            self.world.restart_trainer()
        if all(self.world.receiver(name).gone for name in self.world.state.members):
            self.world.start_all()  # nobody is left to serve: an operator looks after that
        self._go_on_until(lambda: self.world.trainer.request is None, "no faults, and yet no commit")

    def finish(self) -> None:
        """Faults have stopped: whatever state this is, the trainer's next version is reached by all."""
        self.drain()
        self.world.start_all()
        self.world.arrive_all()
        self._go_on_until(self.world.everybody_serves, "no faults, and yet somebody does not serve")
        self.drain()  # a whole transition without any fault
        self._go_on_until(self.world.everybody_serves, "no faults, and yet somebody does not serve")
        invariants.check_finished(self.world)

    def _go_on_until(self, reached: Callable[[], bool], else_say: str) -> None:
        """The last coordinator, or one after it, goes on without faults, and comes to rest."""
        alive = self.alive()
        coordinator = alive[-1] if alive else self.start()
        for _ in range(MAX_DRAIN_STEPS):
            if coordinator.script is None and reached():
                return
            if coordinator.dead:
                coordinator = self.start()
            if self.wake(coordinator):
                coordinator.perform()
            self.tick()
        assert reached(), f"{else_say}: {self.world}; {coordinator!r} waits for {coordinator.effect}"

    def train(self, flips: Sequence[tuple[int, int]] = ()) -> None:
        """The next optimizer step, unless the last one is not committed yet."""
        if self.world.trainer.request is None:
            version = self.world.state.record.version
            usual = [(version % 4, 1), (4 + version % 2, 1), (6 + version % 2, 1)]  # in every task
            self.world.train(self.flipped(flips or usual))

    def wake(self, coordinator: Coordinator) -> bool:
        """Let an idle coordinator take a receiver's or the trainer's request; whether it has work now."""
        if coordinator.script is None and not coordinator.dead:
            asking, request = self.world.asking(), self.world.trainer.request
            if asking:
                coordinator.ask_admit(asking[0])
            elif request is not None:
                coordinator.ask(request)
        return coordinator.script is not None

    def _desk(self) -> tuple[Context, ControlState] | None:
        """Most requests for leases go to the newest coordinator, some to the oldest that lives."""
        self._num_asked += 1
        leasing = [one.leasing for one in self.alive() if one.leasing is not None]
        if not leasing:
            return None
        return leasing[0 if self._num_asked % 4 == 0 else -1], self.world.state

    def other_weights(self, draw: Draw) -> Tensors | None:
        """What a restarted trainer makes of the same step: the same again (None), or not."""
        return None if draw(st.booleans(), "same weights") else self.flipped(draw(FLIPS))

    def flipped(self, flips: Sequence[tuple[int, int]]) -> Tensors:
        """The committed words with some bits flipped: a next optimizer step."""
        words = copy_of(self.world.truth[self.world.state.record.version])
        for index, mask in flips:
            name, offset = ("split", index) if index < 6 else ("whole", index - 6)
            words[name][offset] ^= mask
        return words
