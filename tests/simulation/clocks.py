"""Clocks that start anywhere and run at their own speed, within the assumed bound."""

from dataclasses import dataclass

LEASE_S = 30.0
SKEW_S = 3.0
EVICT_AFTER_S = 25.0
FAST = (LEASE_S + SKEW_S) / LEASE_S
"""A clock that measures one lease as longer by just the bound than one that runs at 1.0."""


@dataclass(slots=True)
class WorldTime:
    """Seconds that have really passed; nobody in the world can read them."""

    now: float = 0.0


@dataclass(frozen=True, slots=True)
class Clock:
    """A process's monotonic clock."""

    time: WorldTime
    offset: float
    rate: float

    def __call__(self) -> float:
        return self.offset + self.rate * self.time.now
