"""The control plane of a run by its short name: ``sqlite:PATH``, ``etcd:URL,URL`` or ``s3:BUCKET/PREFIX``.

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
from dcr.config import CONTROL_PLANES
from dcr.errors import ConfigError
from dcr.model import RunId
from dcr.transport.s3_client import S3Address


@dataclass(frozen=True, slots=True)
class ControlSpec:
    """``name`` is one of CONTROL_PLANES. SQLite: a file on a local disk. etcd: client URLs. S3: a bucket."""

    name: str
    path: Path = Path()
    endpoints: tuple[str, ...] = ()
    bucket: S3Address | None = None

    def __post_init__(self) -> None:
        """Refuse what names no control plane.

        Raises:
            ConfigError: an unknown name, no path, no endpoint, or no bucket.
        """
        if self.name not in CONTROL_PLANES:
            raise ConfigError(f"control plane {self.name!r} is not one of {', '.join(CONTROL_PLANES)}")
        if self.name == "sqlite" and self.path == Path():
            raise ConfigError("control plane sqlite needs a file: sqlite:PATH")
        if self.name == "etcd" and not self.endpoints:
            raise ConfigError("control plane etcd needs client URLs: etcd:http://host:2379,...")
        if self.name == "s3" and (self.bucket is None or not self.bucket.bucket):
            raise ConfigError("control plane s3 needs a bucket: s3:BUCKET or s3:BUCKET/PREFIX")

    def plane(self) -> ControlPlane:
        """A handle on the control plane.

        Raises:
            ConfigError: the folder does not exist, or an endpoint is no URL.
            StoreError: the file is no database.
        """
        if self.name == "sqlite":
            return SqliteControlPlane(self.path)
        if self.bucket is not None:
            from dcr.commit.control_plane.s3 import S3ControlPlane

            return S3ControlPlane(self.bucket)
        return EtcdControlPlane(self.endpoints)

    def leadership(self, run: RunId, name: str, *, lease_s: float) -> Leadership:
        """The candidate ``name``'s handle on who coordinates ``run``; raises as ``plane``."""
        if self.name == "sqlite":
            return SqliteLeadership(self.path, run, name, lease_s=lease_s)
        if self.bucket is not None:
            from dcr.commit.leadership.s3 import S3Leadership

            return S3Leadership(self.bucket, run, name, lease_s=lease_s)
        return EtcdLeadership(self.endpoints, run, name, lease_s=lease_s)

    def text(self) -> str:
        """As ``parse_control`` reads it."""
        if self.bucket is not None:
            return f"s3:{self.bucket.bucket}/{self.bucket.prefix}".rstrip("/")
        return f"{self.name}:{self.path if self.name == 'sqlite' else ','.join(self.endpoints)}"


def parse_control(text: str) -> ControlSpec:
    """Parse ``sqlite:PATH``, ``etcd:URL[,URL ...]`` or ``s3:BUCKET[/PREFIX]`` (placed by the SDK's settings).

    Raises:
        ConfigError: it is none of these.
    """
    name, _, rest = text.partition(":")
    if name == "sqlite":
        return ControlSpec(name, Path(rest))
    if name == "s3":
        bucket, _, prefix = rest.partition("/")
        return ControlSpec(name, bucket=S3Address(bucket, prefix=prefix.strip("/")))
    endpoints = tuple(part.strip() for part in rest.split(",") if part.strip())
    return ControlSpec(name, endpoints=endpoints)
