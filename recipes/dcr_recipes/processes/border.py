"""What every process of a run does before and around its work. Imports nothing heavy."""

import argparse
import ctypes
import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dcr import observe
from dcr.errors import (
    AttemptFailed,
    ConfigError,
    IntegrityError,
    RefitError,
    StoreError,
    Unreachable,
    UnsupportedPath,
)
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder

EXIT_FATAL = 3
"""A restart would not help: the last line of the log says why."""
PARENT = "DCR_PARENT_PID"
INCARNATION = "DCR_INCARNATION"

_FATAL = (ConfigError, UnsupportedPath, IntegrityError, StoreError, AttemptFailed)
_FATAL_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EADDRINUSE)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Context:
    """Who this process is. ``incarnation`` counts its starts under one driver, from 1."""

    name: str
    index: int
    incarnation: int
    folder: RunFolder
    config: RunConfig

    @property
    def run(self) -> str:
        """The run id."""
        return self.folder.run_id.read_text().strip()


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies, however it dies.

    ``parent`` is by default the driver that started it, if one did. Where the kernel has no such call, a
    thread polls for the parent instead.
    """
    if parent is None:
        parent = int(os.environ.get(PARENT, "0"))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_watch_parent, args=(parent,), daemon=True).start()
    if parent and os.getppid() != parent:  # it died before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def enter(name: str | Callable[[int], str], body: Callable[[Context], None]) -> None:
    """Run ``body`` as the process ``name`` (of its index, which ``{}`` becomes) and exit with its verdict.

    Exit codes: 0 done, EXIT_FATAL with one line when a restart cannot help, 1 with a traceback else.
    """
    die_with_parent()
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("index", type=int)
    args = parser.parse_args()
    try:
        _listening(_context(name, args.run_dir, args.index), body)
    except (RefitError, OSError) as err:
        if not is_fatal(err):
            raise
        if os.environ.get("DCR_DEBUG"):
            traceback.print_exc()
        print(f"error: {describe(err)}", file=sys.stderr, flush=True)
        sys.exit(EXIT_FATAL)


def is_fatal(err: Exception) -> bool:
    """Whether a restarted process would meet ``err`` again: configuration, proof, disk, port.

    AttemptFailed is one that was tried to the end: the coordinator has repeated it ``max_attempts`` times.
    Servers that do not answer may come back.
    """
    if isinstance(err, Unreachable):
        return False
    return isinstance(err, _FATAL) or (isinstance(err, OSError) and err.errno in _FATAL_ERRNO)


def describe(err: Exception) -> str:
    """One line for ``err``."""
    return " ".join(str(err).split()) or type(err).__name__


def _context(name: str | Callable[[int], str], run_dir: Path, index: int) -> Context:
    from dcr_recipes.compose import load

    folder = RunFolder(run_dir)
    incarnation = int(os.environ.get(INCARNATION, "1"))
    own = name.format(index) if isinstance(name, str) else name(index)
    return Context(own, index, incarnation, folder, load(folder.config))


def _listening(context: Context, body: Callable[[Context], None]) -> None:
    from dcr_recipes.faults import journal, killer
    from dcr_recipes.scheduled_kills import scheduled_killer
    from dcr_recipes.trace.writer import recording
    from dcr_recipes.traffic import TrafficCounter

    faults, marks = context.config.faults, context.folder.faults
    if faults.cut_connections_s:
        from dcr_recipes.chaos.cuts import install

        install(faults.cut_connections_s)
    record = recording(context.folder, context.name, context.incarnation, trace=context.config.trace)
    context.folder.traffic.mkdir(exist_ok=True)
    traffic = TrafficCounter(context.folder.traffic / f"{context.name}-{context.incarnation}.json")
    if not faults.kill and not faults.kill_runtime_every:
        with record, observe.listening(traffic):
            body(context)
        return
    with (
        record,
        observe.listening(traffic),
        observe.listening(journal(context.name, context.incarnation, marks)),
        observe.listening(killer(faults.kill, context.name, context.incarnation, marks)),
        observe.listening(scheduled_killer(context.config, context.name, marks)),
    ):
        body(context)


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
