"""Being found by the other processes of a run, and finding them."""

import signal
from collections.abc import Callable, Mapping

from dcr.model import new_nonce
from dcr.refit import Site
from dcr.transport.directory import DirectoryStore
from dcr.transport.rpc import RpcServer, serve
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


def announce(context: Context, handlers: Mapping[str, Callable[..., object]], *, port: int = 0) -> RpcServer:
    """Serve ``handlers`` under this process's name; from now on others find it.

    Raises:
        ConfigError: the port is in use.
    """
    server = serve(handlers, port=port)
    site(context).peers.publish(context.name, server.url, new_nonce())
    return server


def wait_for_the_end() -> None:
    """Let the server's threads work until a signal ends this process."""
    while True:
        signal.pause()


def runtime_names(config: RunConfig) -> tuple[str, ...]:
    """Names of the serving instances."""
    return tuple(f"runtime-{i}" for i in range(config.runtime.instances))
