"""``RUN/trace/<process>-<incarnation>.jsonl``: the stages of one process, in its own clock.

Each life of the process begins with a header, a JSON object; each stage is a JSON array
``[name, start_ns, end_ns, thread, fields]``. Lives that a resumed run adds are appended. A line that a
crash cut short is passed over.

Clocks: stages are in nanoseconds of ``time.perf_counter_ns``; the header holds one reading of it beside
the wall clock, which is how files of several processes are brought together (``dcr_recipes.trace.merge``).
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NUM_READINGS = 5
_ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class Header:
    """Who wrote, and what both clocks showed at one instant.

    ``boot`` names the machine's start: ``perf_counter_ns`` is one clock for all processes of it. It is
    empty where that is not known.
    """

    process: str
    incarnation: int
    pid: int
    boot: str
    clock_ns: int
    wall_ns: int

    @property
    def takes_part(self) -> bool:
        """Whether its stages belong to refits: oracles, one a kind of runtime, are only compared with."""
        return self.process.partition("-")[0] != _ORACLE


@dataclass(frozen=True, slots=True)
class Span:
    """One finished stage."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    fields: dict[str, Any]


@dataclass(slots=True)
class Life:
    """What one start of a process did; ``spans`` in the order in which they ended."""

    header: Header
    spans: list[Span] = field(default_factory=list)


def make_header(process: str, incarnation: int, pid: int) -> Header:
    """Read both clocks together: of several tries, the one in which the least time passed."""
    readings = []
    for _ in range(_NUM_READINGS):
        before, wall, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        readings.append((after - before, (before + after) // 2, wall))
    _, clock_ns, wall_ns = min(readings)
    boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
    return Header(process, incarnation, pid, boot, clock_ns, wall_ns)


def header_line(header: Header) -> str:
    """The header as a line of its own, whatever stands before it."""
    return "\n" + json.dumps(asdict(header)) + "\n"


def span_line(span: Span) -> str:
    """One stage as a line."""
    row = [span.name, span.start_ns, span.end_ns, span.thread, span.fields]
    return json.dumps(row, separators=(",", ":"), default=str) + "\n"


def read_lives(folder: Path) -> list[Life]:
    """Every life in every file of ``folder``; files in order of their names."""
    tail = Tail(folder)
    return tail.take() if folder.is_dir() else []


class Tail:
    """Reads what was added to the files of a folder since it was last asked."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._headers: dict[Path, Header] = {}

    def take(self) -> list[Life]:
        """New stages by life; a life that did nothing new is left out."""
        lives = [life for path in sorted(self._folder.glob("*.jsonl")) for life in self._take(path)]
        return [life for life in lives if life.spans]

    def _take(self, path: Path) -> Iterator[Life]:
        start = self._read.get(path, 0)
        with path.open("rb") as file:
            file.seek(start)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]  # the rest is still being written, or torn
        self._read[path] = start + len(whole)
        life = Life(self._headers[path]) if path in self._headers else None
        for line in whole.splitlines():
            parsed = _parse(line)
            if isinstance(parsed, Header):
                if life is not None:
                    yield life
                life = Life(parsed)
            elif parsed is not None and life is not None:
                life.spans.append(parsed)
        if life is not None:
            self._headers[path] = life.header
            yield life


def _parse(line: bytes) -> Header | Span | None:
    """The line's meaning; None for an empty or damaged one."""
    try:
        row = json.loads(line)
        return Header(**row) if isinstance(row, dict) else Span(*row)
    except (ValueError, TypeError):
        return None
