"""The control plane of a run by its short name: ``sqlite:PATH`` or ``etcd:URL,URL``.

The one place that knows which control planes there are; each comes with the leadership that its
coordinators compete for.
"""

from dataclasses import dataclass
from pathlib import Path

from dcr.commit.control_plane.base import ControlPlane
from dcr.commit.control_plane.etcd import EtcdControlPlane
from dcr.commit.control_plane.sqlite import SqliteControlPlane
from dcr.commit.leadership.base import Leadership
from dcr.commit.leadership.etcd import EtcdLeadership
from dcr.commit.leadership.sqlite import SqliteLeadership
from dcr.errors import ConfigError
from dcr.model import RunId

CONTROL_PLANES = ("sqlite", "etcd")
"""What a control plane's name may be."""


@dataclass(frozen=True, slots=True)
class ControlSpec:
    """``name`` is one of CONTROL_PLANES. SQLite: its file, on a disk of this host. etcd: client URLs."""

    name: str
    path: Path = Path()
    endpoints: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what names no control plane.

        Raises:
            ConfigError: an unknown name, no path, or no endpoint.
        """
        if self.name not in CONTROL_PLANES:
            raise ConfigError(f"control plane {self.name!r} is not one of {', '.join(CONTROL_PLANES)}")
        if self.name == "sqlite" and self.path == Path():
            raise ConfigError("control plane sqlite needs a file: sqlite:PATH")
        if self.name == "etcd" and not self.endpoints:
            raise ConfigError("control plane etcd needs client URLs: etcd:http://host:2379,...")

    def plane(self) -> ControlPlane:
        """A handle on the control plane.

        Raises:
            ConfigError: the folder does not exist, or an endpoint is no URL.
            StoreError: the file is no database.
        """
        if self.name == "sqlite":
            return SqliteControlPlane(self.path)
        return EtcdControlPlane(self.endpoints)

    def leadership(self, run: RunId, name: str, *, lease_s: float) -> Leadership:
        """The candidate ``name``'s handle on who coordinates ``run``; raises as ``plane``."""
        if self.name == "sqlite":
            return SqliteLeadership(self.path, run, name, lease_s=lease_s)
        return EtcdLeadership(self.endpoints, run, name, lease_s=lease_s)

    def text(self) -> str:
        """As ``parse_control`` reads it."""
        return f"{self.name}:{self.path if self.name == 'sqlite' else ','.join(self.endpoints)}"


def parse_control(text: str) -> ControlSpec:
    """Parse ``sqlite:PATH`` or ``etcd:URL[,URL ...]``.

    Raises:
        ConfigError: it is neither.
    """
    name, _, rest = text.partition(":")
    if name == "sqlite":
        return ControlSpec(name, Path(rest))
    endpoints = tuple(part.strip() for part in rest.split(",") if part.strip())
    return ControlSpec(name, endpoints=endpoints)
