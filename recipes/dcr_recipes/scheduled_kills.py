"""``faults.kill_runtime_every``: a runtime dies in the midst of every n-th refit; the seed says which.

With ``faults.restart_after_steps`` it then stays away for that many steps, as in the paper's experiment with
killed receivers (section 8.1): its new process waits before it does anything. The run goes on without it
once it is evicted, so ``commit.evict_after_s`` should be short.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dcr.observe import Event, Listener
from dcr_recipes.config import RunConfig
from dcr_recipes.faults import die_once
from dcr_recipes.grpo.seeds import derived_seed

_OPENED = ("receiver.open_apply.after", "rank.apply")
"""Points that name the attempt: of an instance in one process, and of a rank in its own."""
_APPLIED = "receiver.item.after"
_MOST_ITEMS = 8
"""Items that a victim applies at most before it dies: fewer than any model's refit has."""


@dataclass(frozen=True, slots=True)
class Victim:
    """Runtime ``name`` dies when it has applied ``num_items`` items of a transition to ``version``."""

    version: int
    name: str
    num_items: int

    @property
    def mark(self) -> str:
        """File name under which a run remembers that it happened."""
        return f"{self.name}.version-{self.version}"


def victims(config: RunConfig) -> Iterator[Victim]:
    """One per n-th version, in order, up to the run's last step; never one that is away or comes back."""
    every, away_for = config.faults.kill_runtime_every, config.faults.restart_after_steps
    last: deque[tuple[int, int]] = deque()
    for version in range(every, config.steps + 1, every) if every else ():
        while last and last[0][0] + away_for < version:
            last.popleft()
        away = {chosen for _, chosen in last} if away_for else set()
        there = [i for i in range(config.runtime.instances) if i not in away]
        chosen = there[derived_seed(config.seed, "kill", version, "runtime") % len(there)]
        num_items = 1 + derived_seed(config.seed, "kill", version, "items") % _MOST_ITEMS
        last.append((version, chosen))
        yield Victim(version, f"runtime-{chosen}", num_items)


def stay_away(
    config: RunConfig, process: str, marks: Path, *, steps_done: Callable[[], int], pause_s: float = 0.1
) -> None:
    """Return at once, or, in a process of one that was killed, when its steps have passed.

    ``steps_done`` tells the run's last complete step. One killed in step s is back in step
    s + ``faults.restart_after_steps``.
    """
    fired = [
        victim for victim in victims(config) if victim.name == process and (marks / victim.mark).exists()
    ]
    if not fired or not config.faults.restart_after_steps:
        return
    back = fired[-1].version + config.faults.restart_after_steps - 1
    while steps_done() < back:
        time.sleep(pause_s)


def scheduled_killer(config: RunConfig, process: str, marks: Path) -> Listener:
    """Return a listener for ``dcr.observe`` that carries out this process's share, each once in a run."""
    mine = {victim.version: victim for victim in victims(config) if victim.name == process}
    attempt, version, applied = "", 0, 0

    def listen(event: Event) -> None:
        nonlocal attempt, version, applied
        if event.name in _OPENED:
            if event.fields["attempt"] != attempt:
                attempt = str(event.fields["attempt"])
                version, applied = int(attempt.partition("-")[0]), 0
        elif event.name == _APPLIED:
            applied += 1
            victim = mine.get(version)
            if victim is not None and applied == victim.num_items:
                die_once(marks / victim.mark)

    return listen
