"""A run folder as a command that only looks at it sees it."""

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.remote import HttpCaller
from dcr.errors import ConfigError, MissingObject
from dcr.model import ControlState
from dcr.refit import Site
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import LATEST, RunFolder
from dcr_recipes.processes.serving import control_of, owns_server, site_of


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """One run that has committed at least its anchor; other processes may be moving it on."""

    folder: RunFolder
    config: RunConfig
    site: Site
    plane: ControlPlane

    def state(self) -> ControlState:
        """What the control plane holds now."""
        return self.plane.read(self.site.run)

    @contextmanager
    def caller(self) -> Iterator[HttpCaller]:
        """Asks the run's processes, wherever they are now."""
        caller = HttpCaller(self.site.peers)
        try:
            yield caller
        finally:
            caller.close()


def open_run(root: Path | None) -> OpenedRun:
    """Open ``root``, or the latest run.

    Raises:
        ConfigError: no run is there, or it has no commit record.
    """
    from dcr_recipes.compose import load

    root = LATEST if root is None else root
    folder = RunFolder(root.resolve())
    if not folder.config.is_file():
        raise ConfigError(f"{root} holds no run; name a run folder, for example runs/latest")
    config = load(folder.config)
    if config.refit != "dcr":
        raise ConfigError(f"{root} ran with refit={config.refit}: only refit=dcr keeps a commit record")
    if config.commit.name == "sqlite" and not folder.control.is_file():  # looking at it must not create it
        raise ConfigError(f"{root} has not committed a version yet")
    if owns_server(config):
        _serve_objects(folder)  # it may have to take other ports than it had
    opened = OpenedRun(folder, config, site_of(folder, config), control_of(folder, config).plane())
    try:
        opened.state()
    except MissingObject:
        raise ConfigError(f"{root} has not committed a version yet") from None
    return opened


def _serve_objects(folder: RunFolder) -> None:
    """Start the run's own S3 server for as long as this command lives, unless the run itself is alive."""
    from dcr.testing.s3_server import S3Server

    try:
        server = S3Server(folder.s3)
    except ConfigError:  # it runs
        return
    atexit.register(server.close)
    server.start()
