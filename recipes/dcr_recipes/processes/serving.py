"""Being found by the other processes of a run, and finding them."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dcr.config import RefitConfig
from dcr.refit import ControlSpec, Post, Site
from dcr.transport.announce import Announcement
from dcr.transport.announce import announce as announce_process
from dcr.transport.base import ObjectStore
from dcr.transport.directory import DirectoryStore
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.border import Context

if TYPE_CHECKING:
    from dcr.transport.s3_client import S3Address


def site(context: Context) -> Site:
    """Where this process meets the others of its run."""
    return site_of(context.folder, context.config)


def site_of(folder: RunFolder, config: RunConfig) -> Site:
    """A run's meeting place: its id, its store and its endpoints."""
    ahead = config.transport.ahead
    return Site(folder.run_id.read_text().strip(), store_of(folder, config), folder.endpoints, ahead)


def refit_of(context: Context) -> RefitConfig:
    """What a receiver of this process is composed with; what it stages on disk lies in the run folder."""
    config = context.config.refit_config()
    path = config.staging.path or str(context.folder.root / "staging")
    return replace(config, staging=replace(config.staging, path=path))


def store_of(folder: RunFolder, config: RunConfig) -> ObjectStore:
    """Where the run's objects are. A server of the run's own must have been made before."""
    if config.transport.name == "s3":
        return _bucket(bucket_of(folder, config))
    return DirectoryStore(config.transport.path or folder.store)


def bucket_of(folder: RunFolder, config: RunConfig) -> "S3Address":
    """The bucket of a run with transport.name=s3."""
    from dcr.transport.s3_client import S3Address

    told = config.transport
    if owns_server(config):
        from dcr.testing.s3_server import address_of

        return replace(address_of(folder.s3), prefix=told.prefix, patience_s=told.patience_s)
    return S3Address(
        told.bucket, told.endpoint, told.region, told.prefix, told.path_style, patience_s=told.patience_s
    )


def owns_server(config: RunConfig) -> bool:
    """Whether the run's objects lie in an S3 server that the run starts itself."""
    told = config.transport
    return told.name == "s3" and not told.bucket and not told.endpoint


@cache
def _bucket(address: "S3Address") -> ObjectStore:
    """One a process: a client takes a while to make, and holds connections."""
    from dcr.transport.s3 import S3Store

    return S3Store(address)


def control_of(folder: RunFolder, config: RunConfig) -> ControlSpec:
    """Where the run's commit record lives."""
    path = folder.control if config.commit.name == "sqlite" else Path()
    bucket = bucket_of(folder, config) if config.commit.name == "s3" else None
    return ControlSpec(config.commit.name, path, tuple(config.commit.endpoints), bucket)


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
