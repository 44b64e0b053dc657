"""How long each fault kept a run from going on, from what was seen of the run afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dcr_recipes.chaos.schedule import Kind


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that was carried out: when, in seconds since the run's start, and upon which process.

    ``pid`` is 0 where no process of the run was struck. Before ``until`` it is not over.
    """

    number: int
    kind: Kind
    victim: str
    pid: int
    at: float
    until: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """Fault ``struck`` was recovered from after ``seconds``."""

    struck: Struck
    seconds: float


@dataclass(frozen=True, slots=True)
class Sight:
    """An instance that answered a question asked at ``asked_at``: it serves ``version``, or is closed."""

    name: str
    pid: int
    version: int
    is_open: bool
    asked_at: float


@dataclass(slots=True)
class Recoveries:
    """Faults that are not over, and those that are.

    One of a runtime is over when that instance serves the newest version again; any other when a version
    newer than the first one seen after the fault is committed.
    """

    open: dict[int, Struck] = field(default_factory=dict)
    done: list[Recovery] = field(default_factory=list)
    _base: dict[int, int] = field(default_factory=dict)

    def strike(self, struck: Struck) -> None:
        """A fault has been carried out."""
        self.open[struck.number] = struck

    def see_commit(self, version: int, asked_at: float, now: float) -> list[Recovery]:
        """The control plane was asked at ``asked_at`` and holds ``version``; returns what that ends."""
        over = []
        for struck in list(self.open.values()):
            if struck.kind.role == "runtime" or asked_at < struck.at:
                continue
            if version > self._base.setdefault(struck.number, version):
                over.append(self._end(struck, now))
        return over

    def see_instance(self, sight: Sight, newest: int, now: float) -> list[Recovery]:
        """An instance has answered while ``newest`` was the newest version; returns what that ends."""
        if not sight.is_open or sight.version < newest:
            return []
        return [self._end(struck, now) for struck in self._of(sight) if sight.asked_at >= struck.until]

    def _of(self, sight: Sight) -> Sequence[Struck]:
        mine = [struck for struck in self.open.values() if struck.victim == sight.name]
        return [s for s in mine if s.kind is not Kind.KILL_RUNTIME or s.pid != sight.pid]

    def _end(self, struck: Struck, now: float) -> Recovery:
        recovery = Recovery(struck, now - struck.at)
        del self.open[struck.number]
        self._base.pop(struck.number, None)
        self.done.append(recovery)
        return recovery
