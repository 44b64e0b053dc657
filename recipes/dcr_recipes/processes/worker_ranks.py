"""The workers of an engine as ranks of its front, and the receiver over them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from dcr.model import Catalogue, CommitRecord
from dcr.receiver.ports import RequestGate
from dcr.receiver.rank import RankPort
from dcr.refit import compose_instance
from dcr.refit.pump import PumpedReceiver
from dcr_recipes.processes.border import Context
from dcr_recipes.processes.serving import refit_of, site

if TYPE_CHECKING:
    from dcr.receiver.workers.ranks import Workers


def receiver_of(
    context: Context, workers: "Workers", gate: RequestGate
) -> Callable[[CommitRecord], PumpedReceiver]:
    """For ``Host.receive``: the instance whose ranks live in ``workers``, behind ``gate``."""

    def receive(record: CommitRecord) -> PumpedReceiver:
        return compose_instance(
            context.name,
            site(context),
            record,
            ranks=lambda catalogue: _ranks(context, workers, catalogue),
            gate=gate,
            config=refit_of(context),
        )

    return receive


def _ranks(context: Context, workers: "Workers", catalogue: Catalogue) -> list[RankPort]:
    """Workers read the run's folder themselves; from a bucket the front fetches once for all of them."""
    from dcr.receiver.workers.messages import Configure
    from dcr.receiver.workers.ranks import remote_ranks
    from dcr.receiver.workers.spool import Spool

    if context.config.transport.name != "directory":
        spool = Spool(context.folder.exchange / f"{context.name}-payloads")
        return [*remote_ranks(workers, spool.setup(catalogue), spool)]
    store = context.config.transport.path or str(context.folder.store)
    return [*remote_ranks(workers, Configure(store, catalogue.run, catalogue.digest()))]
