"""``faults.kill_runtime_every``: a runtime dies in the midst of every n-th refit; the seed says which."""

from collections.abc import Iterator
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
    """One per n-th version, in order, up to the run's last step."""
    every = config.faults.kill_runtime_every
    for version in range(every, config.steps + 1, every) if every else ():
        chosen = derived_seed(config.seed, "kill", version, "runtime") % config.runtime.instances
        num_items = 1 + derived_seed(config.seed, "kill", version, "items") % _MOST_ITEMS
        yield Victim(version, f"runtime-{chosen}", num_items)


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
