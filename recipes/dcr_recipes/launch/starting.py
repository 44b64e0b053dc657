"""How a process of a run is started: forked from a warm one where that changes nothing, else from nothing.

Thread counts and memory settings are read when libraries load and decide the order of sums, so a warm process
serves exactly one environment. One is worth it where at least two processes share theirs.
"""

import logging
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from dcr_recipes.launch.warm import WarmProcess, command_bytes
from dcr_recipes.launch.warm_process import Request
from dcr_recipes.processes.border import INCARNATION, PARENT

logger = logging.getLogger(__name__)
SWITCH = "DCR_WARM"
"""Set to 0 in the driver's environment: every process is started from nothing."""
_LEAST = 2
_Environment: TypeAlias = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Spec:
    """How to start one process. All processes of one ``group`` are restarted together.

    ``finishes``: exit code 0 means that its work is done; for others any exit is a death.
    """

    name: str
    argv: tuple[str, ...]
    group: str
    finishes: bool = False
    env: dict[str, str] = field(default_factory=dict)


class Process(Protocol):
    """A started child of this process; ``subprocess.Popen`` is one."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit code as of the last ``poll`` or ``wait``, negative for a signal; None while it lives."""
        ...

    def poll(self) -> int | None:
        """See ``returncode``."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; ``subprocess.TimeoutExpired`` if it does not come in time."""
        ...

    def terminate(self) -> None:
        """SIGTERM."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...


class Starter:
    """Starts the processes of one run, all from one thread: the kernel ends them when it ends."""

    def __init__(self, specs: Sequence[Spec], logs: Path, *, lock: int = -1) -> None:
        """``logs`` is an existing folder; ``lock`` a descriptor that every process inherits (-1: none).

        Processes get the present environment of this one, with what their ``Spec`` adds.
        """
        self._specs = specs
        self._logs = logs
        self._lock = lock
        self._base = {**os.environ, PARENT: str(os.getpid())}
        self._base.pop(INCARNATION, None)
        self._warm: dict[_Environment, WarmProcess] = {}

    def open(self) -> None:
        """Start the warm processes."""
        for number, (env, specs) in enumerate(self._shared()):
            self._warm[env] = WarmProcess(
                specs[0].argv[3],
                sorted({spec.argv[2] for spec in specs}),
                env=dict(env),
                log=self._logs / f"warm-{number}.log",
                room=max(command_bytes(spec.argv) for spec in specs),
                lock=self._lock,
            )

    def close(self) -> None:
        """End the warm processes; what they forked lives on. Idempotent."""
        for warm in self._warm.values():
            warm.stop()
        self._warm.clear()

    def is_due(self, spec: Spec) -> bool:
        """Whether to start ``spec`` now: false while the warm process that will fork it imports."""
        env = self._environment(spec)
        if not _can_fork(spec) or env not in self._warm:
            return True
        try:
            return self._warm[env].is_ready()
        except OSError as err:
            self._give_up(env, err)
            return True

    def start(self, spec: Spec, incarnation: int, log: BinaryIO) -> Process:
        """Start ``spec`` for the ``incarnation``-th time, with ``log`` as its output."""
        return self._forked(spec, incarnation, log) or subprocess.Popen(
            spec.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**dict(self._environment(spec)), INCARNATION: str(incarnation)},
            pass_fds=() if self._lock < 0 else (self._lock,),
            start_new_session=True,  # Ctrl-C reaches the driver only; it then ends them in order
        )

    def _forked(self, spec: Spec, incarnation: int, log: BinaryIO) -> Process | None:
        env = self._environment(spec)
        if not _can_fork(spec) or env not in self._warm:
            return None
        try:
            warm = self._warm[env]
            return warm.fork(Request(spec.argv, incarnation), log) if warm.is_ready() else None
        except OSError as err:
            self._give_up(env, err)
            return None

    def _shared(self) -> Iterator[tuple[_Environment, list[Spec]]]:
        if sys.platform != "linux" or os.environ.get(SWITCH) == "0":
            return
        found: dict[_Environment, list[Spec]] = defaultdict(list)
        for spec in filter(_can_fork, self._specs):
            found[self._environment(spec)].append(spec)
        yield from ((env, specs) for env, specs in found.items() if len(specs) >= _LEAST)

    def _environment(self, spec: Spec) -> _Environment:
        return frozenset((self._base | spec.env).items())

    def _give_up(self, env: _Environment, err: OSError) -> None:
        warm = self._warm.pop(env)
        warm.stop()
        logger.warning("no warm process any more (%s): processes start from nothing; log: %s", err, warm.log)


def _can_fork(spec: Spec) -> bool:
    """A module of this interpreter with the run folder as its first argument."""
    return spec.argv[:2] == (sys.executable, "-m") and len(spec.argv) > 3
