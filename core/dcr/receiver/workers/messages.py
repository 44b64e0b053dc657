"""What crosses between an engine's front and its workers: JSON text only, parsed strictly (DESIGN R9).

A worker pulls payload bytes from the store by itself, by attempt, owner, sequence and digest.
"""

from dataclasses import dataclass

from dcr.model import AttemptId
from dcr.receiver.rank import Cover, ItemKey, PartDigests
from dcr.receiver.writer import Slice


@dataclass(frozen=True, slots=True)
class Call:
    """One rank's call: name of the method and its parameters as JSON text.

    ``ticket`` is the front's from that rank's greeting, ``number`` counts its calls from 1: see ``Turns``.
    """

    method: str
    params: str = "{}"
    ticket: str = ""
    number: int = 0


Calls = dict[str, Call]
"""What one collective call asks, by rank in decimal; other ranks have nothing to do."""


@dataclass(frozen=True, slots=True)
class Configure:
    """Where a rank finds the run: ``store`` is a folder, ``catalogue`` the digest of an object in it."""

    store: str
    run: str
    catalogue: str


@dataclass(frozen=True, slots=True)
class Greeting:
    """A worker's answer to ``hello``: its rank of ``world`` in the engine, and the asker's ``ticket``."""

    rank: int
    world: int
    process: int
    device: str
    ticket: str = ""


@dataclass(frozen=True, slots=True)
class Divide:
    """See ``RankPort.divide``."""

    parts: dict[str, tuple[Cover, ...]]


@dataclass(frozen=True, slots=True)
class Begin:
    """See ``RankPort.begin``."""

    clean: bool


@dataclass(frozen=True, slots=True)
class Apply:
    """One payload, by what it is in the store; its bytes must have ``digest``."""

    attempt: AttemptId
    owner: int
    sequence: int
    digest: str
    allow_xor: bool


@dataclass(frozen=True, slots=True)
class Checked:
    """``Partials`` as a list, because JSON's keys are text."""

    partials: list[tuple[ItemKey, PartDigests]]


@dataclass(frozen=True, slots=True)
class File:
    """A file that front and workers can read: restored tensors, or a safetensors file."""

    path: str


@dataclass(frozen=True, slots=True)
class Scan:
    """See ``RankPort.scan``."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Nothing:
    """No parameters."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one rank answers: ``value`` as JSON text, or the class of an error and its message.

    ``asked`` false: the call was for other ranks.
    """

    rank: int
    value: str = ""
    error: str = ""
    message: str = ""
    asked: bool = True
