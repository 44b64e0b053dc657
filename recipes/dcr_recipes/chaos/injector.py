"""Carries planned faults out upon the processes of a run, and ends those that last."""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from dcr_recipes.chaos.cuts import CUT, is_installed
from dcr_recipes.chaos.etcd import ProxiedEtcd
from dcr_recipes.chaos.recoveries import Struck
from dcr_recipes.chaos.schedule import Kind, Planned

PREFIX = {"runtime": "runtime-", "trainer": "owner-", "coordinator": "coordinator"}
"""Role -> how the names of its processes begin."""
_AIM_S = 20.0
"""How long a fault waits for the refit that it aims at."""


class Processes(Protocol):
    """See ``dcr_recipes.launch.supervisor.Supervisor``."""

    def pids(self) -> dict[str, int]:
        """Process id of each process that runs, by name."""
        ...


@dataclass(frozen=True, slots=True)
class Ending:
    """What is to be done when a fault is over: let process ``pid`` go on, or start etcd's ``node``."""

    at: float
    name: str
    pid: int
    node: int | None


@dataclass(slots=True)
class Injector:
    """Strikes when a fault is due, its aim is met, and fewer than ``most_open`` are not recovered from.

    ``cut_s`` is how long the processes of the run cut their connections; ``clock`` gives seconds since
    the run's start. All methods are called from the driver's main thread.
    """

    plan: Iterator[Planned]
    processes: Processes
    etcd: ProxiedEtcd | None
    clock: Callable[[], float]
    in_refit: Callable[[], bool]
    cut_s: float
    most_open: int = 3
    skipped: int = 0
    _next: Planned | None = None
    _due_at: float = 0.0
    _aimed_at: float | None = None
    _endings: list[Ending] = field(default_factory=list)

    def tick(self, num_open: int) -> Struck | None:
        """Do what is due; returns the fault that was carried out, if one was.

        ``num_open`` faults are not recovered from yet.
        """
        self.end_due()
        now = self.clock()
        if self._next is None:
            self._next = next(self.plan)
            self._due_at, self._aimed_at = now + self._next.pause_s, None
        if now < self._due_at or num_open >= self.most_open or not self._aims_well(self._next, now):
            return None
        planned, self._next = self._next, None
        struck = self._strike(planned)
        self.skipped += struck is None
        return struck

    def end_due(self, *, all_of_them: bool = False) -> None:
        """End the faults whose time is over."""
        now = self.clock()
        due = [ending for ending in self._endings if all_of_them or ending.at <= now]
        self._endings = [ending for ending in self._endings if ending not in due]
        for ending in due:
            if ending.node is not None and self.etcd is not None:
                self.etcd.start(ending.node)
            elif self.processes.pids().get(ending.name) == ending.pid:
                _send(ending.pid, signal.SIGCONT)

    def _aims_well(self, planned: Planned, now: float) -> bool:
        if not planned.in_refit:
            return True
        if self._aimed_at is None and (self.in_refit() or now >= self._due_at + _AIM_S):
            self._aimed_at = now + planned.delay_s
        return self._aimed_at is not None and now >= self._aimed_at

    def _strike(self, planned: Planned) -> Struck | None:
        if planned.kind.role == "etcd":
            return self._strike_etcd(planned)
        name, pid = self._victim(planned, self.processes.pids())
        if not pid:
            return None
        at, lasts_s = self.clock(), 0.0
        if planned.kind.is_kill:
            _send(pid, signal.SIGKILL)
        elif planned.kind in (Kind.STOP_RUNTIME, Kind.STOP_COORDINATOR):
            lasts_s = planned.lasts_s
            _send(pid, signal.SIGSTOP)
            self._endings.append(Ending(at + lasts_s, name, pid, None))
        else:
            if not is_installed(pid):
                return None
            lasts_s = self.cut_s
            _send(pid, CUT)
        return Struck(planned.number, planned.kind, name, pid, at, at + lasts_s)

    def _victim(self, planned: Planned, pids: Mapping[str, int]) -> tuple[str, int]:
        names = sorted(name for name in pids if name.startswith(PREFIX[planned.kind.role]))
        if not names:
            return "", 0
        name = names[planned.victim % len(names)]
        return name, pids[name]

    def _strike_etcd(self, planned: Planned) -> Struck | None:
        assert self.etcd is not None
        at, victim = self.clock(), "etcd"
        if planned.kind is Kind.KILL_ETCD_LEADER:
            node = self.etcd.kill_leader()
            if node is None:
                return None
            victim = f"node {node}"
            self._endings.append(Ending(at + planned.lasts_s, victim, 0, node))
        elif planned.kind is Kind.CUT_ETCD:
            victim = self.etcd.cut(planned.victim, planned.lasts_s)
        else:
            self.etcd.lose_answers(planned.lasts_s)
        return Struck(planned.number, planned.kind, victim, 0, at, at + planned.lasts_s)


def _send(pid: int, sign: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it died by itself
        os.kill(pid, sign)
