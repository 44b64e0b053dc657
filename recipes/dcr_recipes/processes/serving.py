"""Being found by the other processes of a run, and finding them."""

import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from dcr.refit import ControlSpec, Post, Site
from dcr.transport.announce import Announcement
from dcr.transport.announce import announce as announce_process
from dcr.transport.directory import DirectoryStore
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.border import Context


def site(context: Context) -> Site:
    """Where this process meets the others of its run."""
    return site_of(context.folder, context.config)


def site_of(folder: RunFolder, config: RunConfig) -> Site:
    """A run's meeting place: its id, its store and its endpoints."""
    store = DirectoryStore(config.transport.path or folder.store)
    return Site(folder.run_id.read_text().strip(), store, folder.endpoints)


def control_of(folder: RunFolder, config: RunConfig) -> ControlSpec:
    """Where the run's commit record lives."""
    path = folder.control if config.commit.name == "sqlite" else Path()
    return ControlSpec(config.commit.name, path, tuple(config.commit.endpoints))


def post_of(folder: RunFolder, config: RunConfig) -> Post:
    """What every coordinator of a run is given."""
    return Post(
        config.commit,
        site_of(folder, config),
        control_of(folder, config),
        config.trainer.ranks,
        runtime_names(config),
        config.commit.leader_lease_s,
    )


def announce(
    context: Context, handlers: Mapping[str, Callable[..., object]], *, port: int = 0
) -> Announcement:
    """Serve ``handlers`` under this process's name; from now on others find it.

    Raises:
        ConfigError: the port is in use.
    """
    return announce_process(site(context).peers, context.name, handlers, port=port)


def wait_for_the_end() -> None:
    """Let the server's threads work until a signal ends this process."""
    while True:
        signal.pause()


def runtime_names(config: RunConfig) -> tuple[str, ...]:
    """Names of the serving instances."""
    return tuple(f"runtime-{i}" for i in range(config.runtime.instances))
