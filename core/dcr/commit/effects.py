"""What the coordinator asks of the world. It is a generator of these: it does no input or output itself.

The real driver runs them over HTTP with threads; the simulation runs them in any order, with
any loss, delay and duplication.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from dcr.errors import RefitError
from dcr.model import ControlState


@dataclass(frozen=True, slots=True)
class Call:
    """Call ``method`` of endpoint ``target`` (``owner-0``, ``runtime-1``) with keyword ``params``."""

    target: str
    method: str
    params: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Gather:
    """Make all calls concurrently and wait for every answer or the deadline.

    Sent back: ``dict[target, answer | RefitError]``; a missed deadline is Unreachable.
    """

    calls: tuple[Call, ...]
    deadline_s: float


@dataclass(frozen=True, slots=True)
class ReadState:
    """Read the control plane. Sent back: ControlState."""


@dataclass(frozen=True, slots=True)
class CreateState:
    """Create the run. Sent back: None, or the RefitError that it ended with."""

    state: ControlState


@dataclass(frozen=True, slots=True)
class CompareAndSet:
    """Change the control plane. Sent back: None, or the Conflict or OutcomeUnknown it ended with."""

    expected: ControlState
    state: ControlState


@dataclass(frozen=True, slots=True)
class StoreObject:
    """Put an immutable object of ``kind`` (``manifest``, ``audit``) in the archive.

    Sent back: its digest, or RefitError.
    """

    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait ``seconds`` before a retry. Sent back: None."""

    seconds: float


Effect: TypeAlias = Gather | ReadState | CreateState | CompareAndSet | StoreObject | Pause
Answer: TypeAlias = object | RefitError
R = TypeVar("R")
Script: TypeAlias = Generator[Effect, Any, R]

__all__ = [
    "Answer", "Call", "CompareAndSet", "CreateState", "Effect", "Gather", "Pause",
    "ReadState", "Script", "StoreObject",
]  # fmt: skip
