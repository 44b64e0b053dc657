"""One run from the outside: claim the folder, keep its processes alive, show progress, report."""

import json
import logging
import os
import shlex
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console

from dcr.errors import ConfigError, MissingObject, StoreError
from dcr.refit.control import ControlSpec
from dcr_recipes import receiver_figures
from dcr_recipes.config import RunConfig, RuntimeConfig, TrainerConfig
from dcr_recipes.errors import EXIT_INTERRUPTED, RunFailed
from dcr_recipes.launch.final import final_table, headline
from dcr_recipes.launch.folder import choose, claim
from dcr_recipes.launch.lanes import check_lanes, interpreter, lane_environment
from dcr_recipes.launch.live import ProcessState
from dcr_recipes.launch.object_server import objects_served
from dcr_recipes.launch.progress import Progress
from dcr_recipes.launch.supervisor import Spec, Supervisor
from dcr_recipes.layout import RunFolder, coordinator_name
from dcr_recipes.models.catalogue import check, prepare
from dcr_recipes.plots import draw_all
from dcr_recipes.runtime.engines import kind_of, kinds, of_kind, oracle_name
from dcr_recipes.scheduled_kills import victims
from dcr_recipes.summary import MetricsLog, add_to_summary
from dcr_recipes.trace.merge import write_trace
from dcr_recipes.trace.writer import read_phases

logger = logging.getLogger(__name__)
_POLL_S = 0.1


def run(words: Sequence[str], console: Console) -> int:
    """Run or resume what ``words`` describe; returns the exit code.

    Raises:
        ConfigError: nothing was started.
        RunFailed: it ended early; the folder can be resumed.
    """
    folder, config = choose(words)
    check_ports(config)
    check_lanes(config)
    check_control(config)
    check(config.model)
    with claim(folder, config) as lock:
        console.print(f"run folder: {folder.root}", highlight=False, soft_wrap=True)
        prepare(config.model, lambda line: console.print(line, highlight=False, soft_wrap=True))
        supervisor = Supervisor(
            specs(folder, config), folder.logs, max_restarts=restart_budget(config), lock=lock
        )
        try:
            _drive_shown(supervisor, folder, config, console)
        except KeyboardInterrupt:
            resume = f"resume with: {program()} grpo resume=true {shlex.quote(f'run_dir={folder.root}')}"
            console.print(f"interrupted; nothing is left running; {resume}", highlight=False, soft_wrap=True)
            return EXIT_INTERRUPTED
        finally:
            merge_trace(folder, config)
        told = {"peak_rss_bytes": supervisor.peak_rss(), "receivers": receiver_figures.figures(folder)}
        add_to_summary(folder.summary, told)
        report(folder, console, num_restarts=supervisor.num_restarts)
    return 0


def _drive_shown(supervisor: Supervisor, folder: RunFolder, config: RunConfig, console: Console) -> None:
    look = partial(look_at, supervisor, folder)
    with (
        objects_served(folder, config),
        Progress(folder.metrics, config.steps, console, look) as progress,
    ):
        drive(supervisor, progress)


def program() -> str:
    """What a shell here calls the command: by its path where it is not on the PATH (``make grpo``)."""
    called = sys.argv[0]
    is_path = Path(called).name == "dcr" and shutil.which("dcr") is None
    return shlex.quote(called) if is_path else "dcr"


def restart_budget(config: RunConfig) -> int:
    """Restarts that a run may need: those that it is granted, and those that its configuration causes."""
    return config.faults.max_restarts + len(list(victims(config)))


def look_at(supervisor: Supervisor, folder: RunFolder) -> list[ProcessState]:
    """Each process as its supervisor sees it and as it says itself."""
    phases = read_phases(folder.phases)
    return [
        ProcessState(state.name, phases.get(state.name, "starting"), state.is_alive, state.num_restarts)
        for state in supervisor.states()
    ]


def merge_trace(folder: RunFolder, config: RunConfig) -> None:
    """Write trace.json, also of a run that ends early; a full disk must not hide how it ended."""
    if not config.trace:
        return
    try:
        write_trace(folder)
    except OSError as err:
        logger.warning("no trace.json: %s", err)


def check_ports(config: RunConfig) -> None:
    """Notice a port in use before anything is started; a runtime that loses a race for it says so too.

    Raises:
        ConfigError: names the port.
    """
    first = config.runtime.port
    for port in range(first, first + config.runtime.instances) if first else ():
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except (OSError, OverflowError) as err:
            reason = os.strerror(err.errno) if isinstance(err, OSError) and err.errno else err
            raise ConfigError(f"runtime.port: cannot listen on port {port}: {reason}") from err


def check_control(config: RunConfig) -> None:
    """Notice an etcd that does not answer before anything is started; a run starts none itself.

    Raises:
        ConfigError: names the endpoints.
    """
    if config.refit != "dcr" or config.commit.name != "etcd":  # a bucket is tried with the run's objects
        return
    control = ControlSpec(config.commit.name, endpoints=tuple(config.commit.endpoints))
    try:
        control.plane().read("0" * 32)
    except MissingObject:
        return
    except StoreError as err:
        raise ConfigError(f"commit.endpoints: {err}") from err


def drive(supervisor: Supervisor, progress: Progress) -> None:
    """Start the processes and watch them until the work is done; none is left when it returns or raises.

    Raises:
        RunFailed: see :meth:`Supervisor.poll`.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        supervisor.start()
        while not supervisor.done:
            for line in supervisor.poll():
                progress.tell(line)
            progress.update()
            time.sleep(_POLL_S)
        progress.update()
    finally:
        supervisor.stop()
        signal.signal(signal.SIGTERM, previous)


def specs(folder: RunFolder, config: RunConfig) -> list[Spec]:
    """The processes of a run, in starting order."""
    trainer, runtime = config.trainer, config.runtime
    roles = [
        ("coordinator", config.commit.coordinators if config.refit == "dcr" else 0, 1),
        ("oracle", 0 if config.verify == "off" else len(kinds(runtime)), runtime.threads),
        ("runtime", runtime.instances, runtime.threads),
        ("trainer", trainer.ranks, trainer.threads),
    ]
    return [
        _spec(folder, config, role=role, index=i, threads=threads)
        for role, num, threads in roles
        for i in range(num)
    ]


_NAMES: Mapping[str, Callable[[int], str]] = {
    "coordinator": coordinator_name,
    "oracle": oracle_name,
    "runtime": "runtime-{}".format,
    "trainer": "owner-{}".format,
}
"""Role -> the name under which its processes find one another, log and are killed in tests, by number."""


def _side(config: RunConfig, role: str, index: int) -> RuntimeConfig | TrainerConfig:
    """What a process that is no coordinator is a part of; oracle i is compared with instances of kind i."""
    runtime = config.runtime
    if role == "trainer":
        return config.trainer
    return of_kind(runtime, kinds(runtime)[index] if role == "oracle" else kind_of(runtime, index))


def _spec(folder: RunFolder, config: RunConfig, *, role: str, index: int, threads: int) -> Spec:
    name = _NAMES[role](index)
    side = None if role == "coordinator" else _side(config, role, index)
    python = sys.executable if side is None else str(interpreter(side))
    argv = (python, "-m", f"dcr_recipes.processes.{role}", str(folder.root), str(index))
    # Set before any library loads: BLAS and OpenMP read it once, and it decides the order of sums.
    env = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    env |= {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}  # models come from local folders only
    # glibc: give blocks of a MiB and more back when they are freed. It would keep them, and a restore's
    # or a step's temporaries, of many sizes and from many threads, are as large as the model.
    env |= {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}
    env |= lane_environment(side, role) if isinstance(side, RuntimeConfig) else {}
    group = "the trainer" if role == "trainer" else name
    return Spec(name, argv, group, finishes=role == "trainer", env=env)


def report(folder: RunFolder, console: Console, *, num_restarts: int) -> None:
    """Draw the pictures and print the figures of a complete run."""
    if not folder.summary.exists():
        raise RunFailed(f"the trainer ended without {folder.summary}")
    try:
        draw_all(folder)
    except (OSError, ImportError) as err:  # the run itself is done and proven
        logger.warning("no plots: %s; draw them with: dcr plot %s", err, folder.root)
    done = json.loads(folder.summary.read_text())
    rows = MetricsLog(folder.metrics).rows()
    console.print(headline(done), style="bold", highlight=False)
    table = final_table(done, rows, folder, num_restarts=num_restarts)
    console.print(table, highlight=False)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def debug_children() -> None:
    """Have every child print the traceback of an error that it would put in one line."""
    os.environ["DCR_DEBUG"] = "1"
