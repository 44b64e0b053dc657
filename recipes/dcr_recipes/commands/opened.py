"""A run folder as a command that only looks at it sees it."""

from dataclasses import dataclass
from pathlib import Path

from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.errors import ConfigError, MissingObject
from dcr.model import ControlState
from dcr.refit import Site
from dcr.transport.directory import DirectoryStore
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder

LATEST = Path("runs/latest")


@dataclass(frozen=True, slots=True)
class OpenedRun:
    """One run that has committed at least its anchor; other processes may be moving it on."""

    folder: RunFolder
    config: RunConfig
    site: Site
    plane: SqliteControlPlane

    def state(self) -> ControlState:
        """What the control plane holds now."""
        return self.plane.read(self.site.run)


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
    if not folder.control.is_file():
        raise ConfigError(f"{root} has not committed a version yet")
    store = DirectoryStore(config.transport.path or folder.store)
    site = Site(folder.run_id.read_text().strip(), store, folder.endpoints)
    opened = OpenedRun(folder, config, site, SqliteControlPlane(folder.control))
    try:
        opened.state()
    except MissingObject:
        raise ConfigError(f"{root} has not committed a version yet") from None
    return opened
