"""The workers of an engine as ranks of its front, wherever the run's payloads lie."""

from typing import TYPE_CHECKING

from dcr.model import Catalogue
from dcr.receiver.rank import RankPort
from dcr_recipes.processes.border import Context

if TYPE_CHECKING:
    from dcr.receiver.workers.ranks import Workers


def ranks_of(context: Context, workers: "Workers", catalogue: Catalogue) -> list[RankPort]:
    """Workers read the run's folder themselves; from a bucket the front fetches once for all of them."""
    from dcr.receiver.workers.messages import Configure
    from dcr.receiver.workers.ranks import remote_ranks
    from dcr.receiver.workers.spool import Spool

    if context.config.transport.name != "directory":
        spool = Spool(context.folder.exchange / f"{context.name}-payloads")
        return [*remote_ranks(workers, spool.setup(catalogue), spool)]
    store = context.config.transport.path or str(context.folder.store)
    return [*remote_ranks(workers, Configure(store, catalogue.run, catalogue.digest()))]
