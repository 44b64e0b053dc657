"""Algorithm B.2 on the real scripts and agents, under a scheduler whose every choice is Hypothesis'.

Every order, loss, delay, repetition and crash is drawn. Every rule first lets a coordinator go on
for a while, faults have a budget and each run is drained at its end: else no run would ever commit.
A shrunk failure prints as a straight-line program.
"""

import sys
from collections.abc import Sequence
from typing import ClassVar

from hypothesis import HealthCheck, Phase, event, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.simulation.clocks import FAST
from tests.simulation.disturbances import DISTURBANCES, FREE, STAGED
from tests.simulation.fleet import Fleet
from tests.simulation.tally import Tally

MAX_FAULTS = 8
RATE = st.sampled_from([1.0, FAST])
STEPS = st.just(0) | st.integers(0, 30)  # a transition without faults takes about 26
KINDS = ["serve", *sorted(DISTURBANCES.keys() - {"serve", *STAGED})]  # the first is drawn most often
STAGED_KINDS = [*KINDS, *sorted(STAGED)]
"""Those of worlds in asynchronous mode."""


class CommitProtocol(RuleBasedStateMachine):
    """``tally`` is that of all examples since it was replaced; ``kinds`` are the disturbances drawn from."""

    tally: ClassVar[Tally] = Tally()
    kinds: ClassVar[Sequence[str]] = KINDS
    mode: ClassVar[str] = "sync"

    @initialize(max_attempts=st.integers(1, 3), rates=st.tuples(RATE, RATE, RATE, RATE))
    def start(self, max_attempts: int, rates: tuple[float, ...]) -> None:
        self.fleet = Fleet(max_attempts, rates, self.mode)
        self.faults = 0
        self.num_disturbances = 0

    @rule(data=st.data())
    def disturb(self, data: st.DataObject) -> None:
        """One rule for all, so that none is crowded out; those that cost count against the budget."""
        one = st.tuples(STEPS, st.sampled_from(self.kinds))
        for steps, kind in data.draw(st.lists(one, min_size=2, max_size=5), "plan"):
            coordinator = self.fleet.advance(data.draw, steps)
            if coordinator is not None and (kind in FREE or self.faults < MAX_FAULTS):
                self.faults += kind not in FREE
                self.num_disturbances += 1
                note(f"{kind} after {steps} steps")
                DISTURBANCES[kind](self.fleet, coordinator, data.draw)
            self.fleet.tick()

    def teardown(self) -> None:  # type: ignore[explicit-override]  # typing.override: 3.12
        if not hasattr(self, "fleet"):
            return
        world = self.fleet.world
        try:
            if sys.exc_info()[0] is None:
                self.fleet.finish()
                event(f"commits: {min(len(world.truth) - 1, 10)}")
                event(f"faults: {self.faults}")
        finally:
            world.close()
            self.tally.add(Tally(1, world.num_steps, self.num_disturbances, world.events))


def simulate(
    *, examples: int, rules: int, kinds: Sequence[str] = KINDS, seeded: bool = True, mode: str = "sync"
) -> Tally:
    """Run the machine on ``examples`` worlds of up to ``rules`` rules each; what they came to.

    ``kinds``: the disturbances that there are; ``mode`` is that of ``CommitConfig``.
    ``seeded``: the same worlds every time; else others, and a failure is shrunk and can be replayed.

    Raises:
        AssertionError: an invariant is broken.
    """
    phases = [Phase.generate] if seeded else [Phase.generate, Phase.shrink]
    CommitProtocol.tally, CommitProtocol.kinds, CommitProtocol.mode = Tally(), kinds, mode
    chosen = settings(
        max_examples=examples, stateful_step_count=rules, derandomize=seeded, deadline=None, phases=phases,
        database=None, print_blob=True, report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    run_state_machine_as_test(CommitProtocol, settings=chosen)
    return CommitProtocol.tally
