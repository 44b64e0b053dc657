"""The listeners of one process: its trace file, and what it says that it is doing."""

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from dcr import observe
from dcr.observe import Event
from dcr_recipes.layout import RunFolder
from dcr_recipes.trace.files import Span, header_line, make_header, span_line
from dcr_recipes.trace.stages import FLUSHED, PHASES, TRACKS

logger = logging.getLogger(__name__)
_MOST_LINES = 512
_BEFORE, _AFTER = ".before", ".after"


class TraceWriter:
    """Collects stages and appends them to ``path`` at the end of each transition. Thread-safe.

    A full disk ends the trace, not the run.
    """

    def __init__(self, path: Path, process: str, incarnation: int) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._lines = [header_line(make_header(process, incarnation, os.getpid()))]
        self._open: dict[tuple[int, str], int] = {}
        self._failed = False

    def __call__(self, event: Event) -> None:
        """Keep ``event`` if it is, or ends, a known stage."""
        thread = threading.get_native_id()
        name, start = event.name, event.start_ns
        if name.endswith(_BEFORE):
            if name.removesuffix(_BEFORE) in TRACKS:
                self._open[thread, name.removesuffix(_BEFORE)] = start
            return
        if name.endswith(_AFTER):
            name = name.removesuffix(_AFTER)
            begun = self._open.pop((thread, name), None)
            if begun is None:
                return
            start = begun
        if name in TRACKS:
            self._add(Span(name, start, event.end_ns, thread, event.fields))

    def flush(self) -> None:
        """Write what has been collected."""
        with self._lock:
            self._write()

    def _add(self, span: Span) -> None:
        with self._lock:
            self._lines.append(span_line(span))
            if span.name in FLUSHED or len(self._lines) >= _MOST_LINES:
                self._write()

    def _write(self) -> None:
        data = "".join(self._lines).encode()
        self._lines.clear()
        if self._failed:
            return
        try:
            with self._path.open("ab") as out:
                out.write(data)
        except OSError as err:
            self._failed = True
            logger.warning("no further trace: %s", err)


class PhaseWriter:
    """Keeps one small file up to date that says what this process is doing. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._staged = path.with_suffix(".tmp")
        self._lock = threading.Lock()
        self._told = ""
        self.tell("starting")

    def __call__(self, event: Event) -> None:
        """Take over what ``event`` means for a person."""
        phase = PHASES.get(event.name)
        if phase is not None:
            self.tell(phase.format_map(event.fields))

    def tell(self, phase: str) -> None:
        """Replace the file; failing to do so is no reason to stop."""
        with self._lock, contextlib.suppress(OSError):
            if phase != self._told:
                self._staged.write_text(json.dumps({"phase": phase, "since_ns": time.time_ns()}))
                self._staged.replace(self._path)
                self._told = phase


@contextlib.contextmanager
def recording(folder: RunFolder, process: str, incarnation: int, *, trace: bool) -> Iterator[None]:
    """Have this process tell its phase and, with ``trace``, its stages inside the block."""
    folder.trace.mkdir(exist_ok=True)
    folder.phases.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(observe.listening(PhaseWriter(folder.phases / f"{process}.json")))
        if trace:
            writer = TraceWriter(folder.trace / f"{process}-{incarnation}.jsonl", process, incarnation)
            stack.callback(writer.flush)
            stack.enter_context(observe.listening(writer))
        yield


def read_phases(folder: Path) -> dict[str, str]:
    """What each process said last, by its name."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found[path.stem] = str(json.loads(path.read_text())["phase"])
    return found
