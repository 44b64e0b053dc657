"""Processes that kill themselves at a named point, once per run: real crashes where tests want them.

While a run is told to, each of its processes also keeps a journal of the points that it passes, so
that a test can show in which order a restarted process did what.
"""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcr.errors import ConfigError
from dcr.model import to_json
from dcr.observe import Event, Listener


@dataclass(frozen=True, slots=True)
class Kill:
    """``process`` sends itself SIGKILL at the ``nth`` occurrence of ``point`` (both from 1).

    ``incarnation`` limits it to the process's k-th start; None means whichever gets there first.
    """

    process: str
    point: str
    nth: int
    incarnation: int | None

    @property
    def mark(self) -> str:
        """File name under which a run remembers that it fired."""
        return f"{self.process}.{self.point}.{self.nth}.{self.incarnation or 'any'}"


def parse_kill(entry: str) -> Kill:
    """Parse ``process:point:nth[:incarnation]``, for example ``runtime-0:receiver.item.after:2:1``.

    Raises:
        ConfigError: another number of parts, an empty one, or a count that is not a positive integer.
    """
    parts = entry.split(":")
    counts = parts[2:]
    good = len(parts) in (3, 4) and all(parts) and all(c.isdecimal() and int(c) > 0 for c in counts)
    if not good or "/" in entry:
        raise ConfigError(f"faults.kill: {entry!r} is not process:point:nth[:incarnation], counted from 1")
    incarnation = int(counts[1]) if len(counts) > 1 else None
    return Kill(parts[0], parts[1], int(counts[0]), incarnation)


def killer(entries: Sequence[str], process: str, incarnation: int, marks: Path) -> Listener:
    """Return a listener for ``dcr.observe`` that carries out this process's entries.

    ``marks`` is the run's ``faults`` folder; a mark is durable before the signal is sent.
    """
    kills = [kill for kill in map(parse_kill, entries) if kill.process == process]
    mine = [kill for kill in kills if kill.incarnation in (None, incarnation)]
    counts = dict.fromkeys((kill.point for kill in mine), 0)

    def listen(event: Event) -> None:
        if event.name not in counts:
            return
        counts[event.name] += 1
        for kill in mine:
            if kill.point == event.name and kill.nth == counts[event.name]:
                die_once(marks / kill.mark)

    return listen


def journal(process: str, incarnation: int, marks: Path) -> Listener:
    """Return a listener that appends every point to ``marks/<process>.points``, one JSON object a line.

    ``point`` and ``incarnation`` are of every line, the rest are the point's own fields. Lines that were
    written before a SIGKILL survive it; spans are left out.
    """
    marks.mkdir(exist_ok=True)
    path = marks / f"{process}.points"

    def listen(event: Event) -> None:
        if event.start_ns != event.end_ns:
            return
        line = {"point": event.name, "incarnation": incarnation, **event.fields}
        with path.open("ab") as out:
            out.write(to_json(line) + b"\n")

    return listen


def die_once(mark: Path) -> None:
    """Send this process SIGKILL, unless ``mark`` says that it has happened before in this run."""
    mark.parent.mkdir(exist_ok=True)
    try:
        descriptor = os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    except FileExistsError:
        return
    os.fsync(descriptor)
    os.kill(os.getpid(), signal.SIGKILL)
