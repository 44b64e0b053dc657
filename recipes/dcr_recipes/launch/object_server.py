"""The S3 server of a run that has none: kept alive beside the run's processes, ended with them."""

import contextlib
import logging
import threading
from collections.abc import Iterator

from dcr.errors import RefitError
from dcr.testing.s3_server import S3Server
from dcr.transport.s3 import S3Store
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.serving import bucket_of, owns_server

logger = logging.getLogger(__name__)
_LOOK_S = 0.2


@contextlib.contextmanager
def objects_served(folder: RunFolder, config: RunConfig) -> Iterator[None]:
    """Have the run's bucket, whoever keeps it, take and guard objects inside the block.

    Raises:
        ConfigError: no server is installed, or the bucket cannot be used.
        Unreachable: the server does not come up.
        StoreError: it does not answer.
    """
    if config.transport.name != "s3" or config.refit != "dcr":
        yield
        return
    with contextlib.ExitStack() as stack:
        if owns_server(config):
            stack.enter_context(own_server(folder))
        store = S3Store(bucket_of(folder, config))
        store.check(as_control_plane=config.commit.name == "s3")
        store.close()
        yield


@contextlib.contextmanager
def own_server(folder: RunFolder) -> Iterator[None]:
    """Run the server of ``folder`` inside the block; one that dies is started again on its data."""
    server = S3Server(folder.s3)
    ending = threading.Event()
    try:
        server.start()
        keeper = threading.Thread(target=_keep, args=(server, ending), name="s3", daemon=True)
        keeper.start()
        try:
            yield
        finally:
            ending.set()
            keeper.join()
    finally:
        server.close()


def _keep(server: S3Server, ending: threading.Event) -> None:
    while not ending.wait(_LOOK_S):
        if not server.is_alive:
            logger.warning("the S3 server of this run died; it is started again")
            try:
                server.start()
            except (RefitError, OSError):
                logger.exception("it did not come up")
    server.kill()
