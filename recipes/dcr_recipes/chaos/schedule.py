"""Which fault comes next, whom it strikes and how long it lasts: functions of the seed and its number alone.

When a planned fault strikes is not: it waits for the pause before it, for a refit if it aims at one, and
while too many earlier faults are not recovered from (:mod:`dcr_recipes.chaos.injector`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import count

from dcr_recipes.grpo.seeds import derived_seed


class Kind(StrEnum):
    """What happens. ``kill`` is SIGKILL, ``stop`` SIGSTOP and later SIGCONT, ``cut`` ends connections."""

    KILL_RUNTIME = "kill runtime"
    KILL_TRAINER = "kill trainer"
    KILL_COORDINATOR = "kill coordinator"
    KILL_ETCD_LEADER = "kill etcd leader"
    STOP_RUNTIME = "stop runtime"
    STOP_COORDINATOR = "stop coordinator"
    CUT_RUNTIME = "cut runtime"
    CUT_COORDINATOR = "cut coordinator"
    CUT_ETCD = "cut etcd"
    LOSE_ANSWERS = "lose answers of etcd"

    @property
    def is_kill(self) -> bool:
        """Whether a process dies of it."""
        return self.value.startswith("kill")

    @property
    def role(self) -> str:
        """Whom it strikes: ``runtime``, ``trainer``, ``coordinator`` or ``etcd``."""
        return next(role for role in ROLES if role in self.value)


ROLES = ("runtime", "trainer", "coordinator", "etcd")

WEIGHTS: Mapping[Kind, int] = {
    Kind.KILL_RUNTIME: 6,
    Kind.KILL_TRAINER: 2,
    Kind.KILL_COORDINATOR: 4,
    Kind.KILL_ETCD_LEADER: 2,
    Kind.STOP_RUNTIME: 3,
    Kind.STOP_COORDINATOR: 2,
    Kind.CUT_RUNTIME: 3,
    Kind.CUT_COORDINATOR: 2,
    Kind.CUT_ETCD: 2,
    Kind.LOSE_ANSWERS: 2,
}
"""How often each is drawn, relative to the others that the run has processes for."""

_FINE = 1 << 20
_SHORTEST_S = 0.2


@dataclass(frozen=True, slots=True)
class Planned:
    """Fault ``number`` strikes the ``victim``-th process of its role, modulo how many there are.

    ``pause_s`` passes since the fault before it. ``lasts_s``: of stops, cuts and etcd's absence. With
    ``in_refit`` it then waits for a refit to have gone on for ``delay_s``.
    """

    number: int
    kind: Kind
    victim: int
    pause_s: float
    lasts_s: float
    in_refit: bool
    delay_s: float


@dataclass(frozen=True, slots=True)
class Pace:
    """Mean pause between two faults, and the longest that one of them lasts; seconds."""

    mean_pause_s: float = 3.0
    longest_s: float = 6.0
    refit_s: float = 0.4


def schedule(seed: int, roles: Sequence[str], pace: Pace) -> Iterator[Planned]:
    """Every fault of a run whose processes have ``roles``, in order, without end."""
    kinds = [kind for kind in Kind if kind.role in roles for _ in range(WEIGHTS[kind])]
    for number in count(1):
        yield _planned(seed, number, kinds, pace)


def _planned(seed: int, number: int, kinds: Sequence[Kind], pace: Pace) -> Planned:
    def share(what: str) -> float:
        return (derived_seed(seed, "chaos", number, what) % _FINE) / _FINE

    longest = max(pace.longest_s, _SHORTEST_S)
    return Planned(
        number=number,
        kind=kinds[derived_seed(seed, "chaos", number, "kind") % len(kinds)],
        victim=derived_seed(seed, "chaos", number, "victim") % _FINE,
        pause_s=2 * pace.mean_pause_s * share("pause"),
        # Short ones are the more frequent: they are over before a deadline notices them.
        lasts_s=_SHORTEST_S + (longest - _SHORTEST_S) * share("lasts") ** 2,
        in_refit=derived_seed(seed, "chaos", number, "aim") % 2 == 0,
        delay_s=pace.refit_s * share("delay"),
    )
