"""Being found by the other processes of a run, and finding them."""

import signal
from collections.abc import Callable, Mapping

from dcr.model import new_nonce
from dcr.refit import Site
from dcr.transport.directory import DirectoryStore
from dcr.transport.rpc import RpcServer, serve
from dcr_recipes.config import RunConfig
from dcr_recipes.processes.border import Context


def site(context: Context) -> Site:
    """The run's meeting place: its store and its endpoints."""
    store = DirectoryStore(context.config.transport.path or context.folder.store)
    return Site(context.run, store, context.folder.endpoints)


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
