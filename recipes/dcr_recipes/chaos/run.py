"""``dcr chaos``: one run under faults, from its folder to its verdict."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from rich.console import Console

from dcr.commit.control_plane.base import ControlPlane
from dcr.errors import RefitError
from dcr.model import CommitRecord
from dcr.refit import ControlSpec
from dcr.transport.peers import Peers
from dcr_recipes.chaos.asker import Askers
from dcr_recipes.chaos.copies import DenseCopies
from dcr_recipes.chaos.etcd import ProxiedEtcd, proxied_etcd
from dcr_recipes.chaos.injector import Injector
from dcr_recipes.chaos.journal import Journal
from dcr_recipes.chaos.options import Options, run_words
from dcr_recipes.chaos.report import last_line, summarize
from dcr_recipes.chaos.schedule import ROLES, schedule
from dcr_recipes.chaos.screen import Screen
from dcr_recipes.chaos.storm import Parts, Storm
from dcr_recipes.chaos.verdict import judge
from dcr_recipes.chaos.watch import Watchers
from dcr_recipes.compose import save
from dcr_recipes.config import RunConfig
from dcr_recipes.errors import RunFailed
from dcr_recipes.launch.driver import specs
from dcr_recipes.launch.folder import choose, claim
from dcr_recipes.launch.supervisor import Supervisor
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.serving import control_of, runtime_names
from dcr_recipes.runtime.remote import RemoteRuntime
from dcr_recipes.summary import MetricsLog, write_summary
from dcr_recipes.trace.writer import read_phases

_STATUS_S = 1.0
_ASK_S = 10.0
_REFIT = "refit to"
"""How the trainer's phase begins while it waits for a refit."""


@dataclass(frozen=True, slots=True)
class Place:
    """A claimed run folder, with what its run is made of. ``lock`` is inherited by its processes."""

    folder: RunFolder
    config: RunConfig
    lock: int
    plane: ControlPlane
    etcd: ProxiedEtcd | None

    def record(self) -> CommitRecord:
        """What is committed."""
        return self.plane.read(self.folder.run_id.read_text().strip()).record


def run(options: Options, console: Console) -> int:
    """Make the run and judge it; 0 if nothing is wrong.

    Raises:
        ConfigError: nothing was started.
        KeyboardInterrupt: nothing is left running, and there is no verdict.
    """
    folder, config = choose(run_words(options))
    os.environ["OMP_NUM_THREADS"] = str(config.runtime.threads)  # read once, by the replay's libraries
    with ExitStack() as stack:
        lock = stack.enter_context(claim(folder, config))
        etcd = None
        if options.etcd_nodes:
            etcd = stack.enter_context(proxied_etcd(folder.root / "etcd", options.etcd_nodes))
            config.commit.name, config.commit.endpoints = "etcd", etcd.endpoints
            save(config, folder.config)
        place = Place(folder, config, lock, _plane(folder, config, etcd), etcd)
        screen = stack.enter_context(Screen(console))
        screen.say(f"run folder: {folder.root}")
        parts = _parts(place, options, screen)
        storm = Storm(parts)
        failure = _weather(storm, options)
        found = judge(storm, folder, config, options, read=place.record, failure=failure)
    summary = summarize(found)
    write_summary(folder.root / "chaos.json", summary)
    for problem in summary["problems"]:
        console.print(f"wrong: {problem}", highlight=False, soft_wrap=True)
    console.print(last_line(summary), highlight=False, soft_wrap=True)
    return 0 if summary["ok"] else 1


def _plane(folder: RunFolder, config: RunConfig, etcd: ProxiedEtcd | None) -> ControlPlane:
    """The run's control plane as the driver looks at it: past the proxies."""
    direct = ControlSpec("etcd", endpoints=etcd.direct) if etcd else control_of(folder, config)
    return direct.plane()


def _weather(storm: Storm, options: Options) -> str:
    """Run the storm to its end, and end all processes; returns how the run failed, or nothing."""
    parts = storm.parts
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        parts.supervisor.start()
        parts.watchers.start()
        storm.run(options)
    except (RunFailed, RefitError) as err:
        return str(err)
    finally:
        parts.askers.stop()
        parts.watchers.close()
        parts.injector.end_due(all_of_them=True)  # a stopped process would not hear that it shall end
        parts.supervisor.stop()
        parts.askers.close()
        signal.signal(signal.SIGTERM, previous)
    return ""


def _parts(place: Place, options: Options, screen: Screen) -> Parts:
    folder, config = place.folder, place.config
    began = time.monotonic()
    clock: Callable[[], float] = lambda: time.monotonic() - began  # noqa: E731 -- shared by all parts
    names = runtime_names(config)
    peers = Peers(folder.endpoints)
    supervisor = Supervisor(
        specs(folder, config), folder.logs, max_restarts=config.faults.max_restarts, lock=place.lock
    )
    looked_at = {name: RemoteRuntime(peers, name, timeout_s=_STATUS_S) for name in names}
    asked = {name: RemoteRuntime(peers, name, timeout_s=_ASK_S).generate for name in names}
    return Parts(
        supervisor=supervisor,
        injector=_injector(place, options, supervisor, clock),
        watchers=Watchers(place.record, looked_at, clock),
        askers=Askers(folder.root / "answers.jsonl", asked, options.seed, clock),
        copies=DenseCopies(folder, folder.root / "dense-copies"),
        journal=Journal(folder.root / "chaos.jsonl"),
        metrics=MetricsLog(folder.metrics),
        screen=screen,
        instances=names,
        clock=clock,
    )


def _injector(place: Place, options: Options, supervisor: Supervisor, clock: Callable[[], float]) -> Injector:
    roles = [role for role in ROLES if role != "etcd" or place.etcd is not None]
    return Injector(
        plan=schedule(options.seed, roles, options.pace),
        processes=supervisor,
        etcd=place.etcd,
        clock=clock,
        in_refit=partial(_is_refitting, place.folder),
        cut_s=place.config.faults.cut_connections_s,
        most_open=options.most_open,
    )


def _is_refitting(folder: RunFolder) -> bool:
    return read_phases(folder.phases).get("owner-0", "").startswith(_REFIT)


def _interrupt(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt
