"""CPU seconds and wall seconds of pieces of work, as medians over interleaved rounds.

On a machine that others use, wall time says little and the processor's speed drifts. So every piece
of work is timed once a round, round after round, and what is compared was run close together.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Work: TypeAlias = Callable[[], object]
Clock: TypeAlias = Callable[[], float]

thread_clock: Clock = time.thread_time
"""CPU seconds of the calling thread: for work that starts no threads."""

process_clock: Clock = time.process_time
"""CPU seconds of all threads of this process."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one piece of work: of processors, and on the wall."""

    cpu_s: float
    wall_s: float


def timed(work: Work, clock: Clock = process_clock) -> Cost:
    """Run ``work`` once."""
    wall, cpu = time.perf_counter(), clock()
    work()
    return Cost(clock() - cpu, time.perf_counter() - wall)


def median(costs: list[Cost]) -> Cost:
    """Medians of both figures, each on its own.

    >>> median([Cost(1.0, 9.0), Cost(2.0, 4.0), Cost(3.0, 5.0)])
    Cost(cpu_s=2.0, wall_s=5.0)
    """
    return Cost(
        statistics.median(cost.cpu_s for cost in costs), statistics.median(cost.wall_s for cost in costs)
    )


def interleaved(
    works: Mapping[str, Work], *, rounds: int, clock: Clock = process_clock, warm: bool = True
) -> dict[str, Cost]:
    """Median cost of each piece of work over ``rounds``; ``warm`` runs each once before, untimed.

    Every round begins one further on: what runs behind one that leaves caches cold or pages freed
    would always be the slower for it.
    """
    if warm:
        for work in works.values():
            work()
    names = list(works)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(rounds):
        first = turn % max(len(names), 1)
        for name in (*names[first:], *names[:first]):
            costs[name].append(timed(works[name], clock))
    return {name: median(found) for name, found in costs.items()}
