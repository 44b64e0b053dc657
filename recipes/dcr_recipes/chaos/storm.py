"""The driver of a chaos run: keeps its processes alive, strikes them, and notes what becomes of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dcr_recipes.chaos.asker import Askers
from dcr_recipes.chaos.copies import DenseCopies
from dcr_recipes.chaos.history import Commit
from dcr_recipes.chaos.injector import Injector
from dcr_recipes.chaos.journal import Journal
from dcr_recipes.chaos.options import Options
from dcr_recipes.chaos.recoveries import Recoveries, Recovery, Sight, Struck
from dcr_recipes.chaos.screen import Screen
from dcr_recipes.chaos.watch import Watchers
from dcr_recipes.errors import RunFailed
from dcr_recipes.launch.supervisor import Supervisor
from dcr_recipes.summary import MetricsLog

_TICK_S = 0.03
_POLL_S = 0.1
_LONGER = 3


@dataclass(frozen=True, slots=True)
class Parts:
    """What a storm works with; ``instances`` are the names of the runtimes."""

    supervisor: Supervisor
    injector: Injector
    watchers: Watchers
    askers: Askers
    copies: DenseCopies
    journal: Journal
    metrics: MetricsLog
    screen: Screen
    instances: Sequence[str]
    clock: Callable[[], float]


@dataclass(slots=True)
class Storm:
    """State of one run, all of it in the driver's main thread."""

    parts: Parts
    recoveries: Recoveries = field(default_factory=Recoveries)
    faults: list[Struck] = field(default_factory=list)
    seen: list[Commit] = field(default_factory=list)
    newest: int = -1
    reported: int = 0
    serving: dict[str, int] = field(default_factory=dict)
    _polled_at: float = -_POLL_S

    def run(self, options: Options) -> None:
        """Wait for the run to be up, strike it for ``options.seconds``, and wait for it to recover.

        Raises:
            RunFailed: it did not come up, ended by itself, or did not come to rest.
        """
        parts = self.parts
        self._until(self._is_up, "starting", options.start_s)
        began = parts.clock()
        parts.askers.start()
        parts.journal.write("begin", began, version=self.newest)
        while not self._is_enough(options, passed := parts.clock() - began):
            self._strike()
            self._turn(self._words(), passed, options.seconds)
        parts.injector.end_due(all_of_them=True)
        parts.journal.write("end", parts.clock(), version=self.newest)
        goal = self.newest + 1
        self._until(lambda: self._is_calm(goal), "waiting for recovery", options.quiet_s)

    def _is_enough(self, options: Options, passed: float) -> bool:
        kills = sum(struck.kind.is_kill for struck in self.faults)
        short = self.newest < options.least_transitions or kills < options.least_kills
        return passed >= (_LONGER if short else 1) * options.seconds

    def _strike(self) -> None:
        struck = self.parts.injector.tick(len(self.recoveries.open))
        if struck is not None:
            self.faults.append(struck)
            self.recoveries.strike(struck)
            self.parts.journal.struck(struck, self.newest)

    def _until(self, is_reached: Callable[[], bool], what: str, deadline_s: float) -> None:
        began = self.parts.clock()
        while not is_reached():
            passed = self.parts.clock() - began
            if passed > deadline_s:
                raise RunFailed(f"{what}: not done in {deadline_s:g} s; {self._words()}")
            self._turn(f"{what}; {self._words()}", passed, deadline_s)

    def _turn(self, what: str, done: float, total: float) -> None:
        """One look at everything."""
        parts, now = self.parts, self.parts.clock()
        if now - self._polled_at >= _POLL_S:
            self._polled_at = now
            for line in parts.supervisor.poll():
                parts.journal.write("restart", now, line=line)
            rows = parts.metrics.rows()
            self.reported = int(rows[-1]["version"]) if rows else 0
        parts.copies.look()
        for sight in parts.watchers.drain():
            for recovery in self._see(sight):
                parts.journal.recovered(recovery)
        parts.screen.show(what, done, total)
        time.sleep(_TICK_S)

    def _see(self, seen: object) -> list[Recovery]:
        now = self.parts.clock()
        if isinstance(seen, Sight):
            self.serving[seen.name] = seen.version if seen.is_open else -1
            return self.recoveries.see_instance(seen, self.newest, now)
        commit, asked_at = seen.commit, seen.asked_at  # type: ignore[attr-defined]
        if not self.seen or self.seen[-1] != commit:
            self.seen.append(commit)
        self.newest = max(self.newest, commit.version)
        return self.recoveries.see_commit(commit.version, asked_at, now)

    def _is_up(self) -> bool:
        serving = [self.serving.get(name, -1) for name in self.parts.instances]
        return self.newest >= 1 and min(serving) >= 0

    def _is_calm(self, goal: int) -> bool:
        """Whether nothing is left to recover from and a refit of after the storm is served and verified."""
        serving = [self.serving.get(name, -1) for name in self.parts.instances]
        return not self.recoveries.open and self.reported >= goal and min(serving) >= goal

    def _words(self) -> str:
        kills = sum(struck.kind.is_kill for struck in self.faults)
        return (
            f"v{self.newest}, {len(self.faults)} faults ({kills} kills), {len(self.recoveries.open)} open,"
            f" {self.parts.askers.num_answers} answers"
        )
