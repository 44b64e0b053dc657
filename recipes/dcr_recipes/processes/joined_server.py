"""A server that somebody else started, as one more instance of a run: ``dcr receive``."""

import threading
from functools import partial

from dcr.receiver.lease import Lease
from dcr.receiver.workers.control import EngineControl, Lends
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr.refit import await_record
from dcr.refit.background import BackgroundAudit
from dcr.refit.lease import LeaseKeeper
from dcr.refit.pump import Pump
from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder
from dcr_recipes.processes.border import Context
from dcr_recipes.processes.runtime import be_admitted
from dcr_recipes.processes.serving import announce, site
from dcr_recipes.processes.worker_ranks import receiver_of


def take_part(
    folder: RunFolder, config: RunConfig, name: str, control: EngineControl, stop: threading.Event
) -> None:
    """Admit the engine behind ``control`` as ``name`` and keep it at the run's version until ``stop`` is set.

    Then it answers no more, and the run goes on without it.

    Raises:
        ConfigError: the engine takes no deltas, or obeys no lease while the run has them.
        Unreachable: the engine does not answer.
        IntegrityError: the committed version cannot be rebuilt or proven there.
        UnsupportedPath: its loader cannot take it.
    """
    context = Context(name, 0, 1, folder, config)
    place, gate, lease = site(context), EngineGate(control), Lease()
    record = await_record(place, config.commit, deadline_s=config.commit.collect_deadline_s)
    if config.commit.lease_s:
        gate.serve_under(lease)
    folder.exchange.mkdir(exist_ok=True)
    receiver = receiver_of(context, Workers(control, folder=folder.exchange), gate)(record)
    announce(context, Pump(receiver, idle_s=config.transport.poll_s).handlers())
    coordinator = place.coordinator(config.commit)
    print(f"{name} is being restored to version {record.version} or a later one", flush=True)
    be_admitted(name, coordinator)
    print(f"{name} is admitted and serves", flush=True)
    repair = partial(be_admitted, name, coordinator)
    keeper = LeaseKeeper(receiver, lease, coordinator, on_refused=repair) if config.commit.lease_s else None
    audit = BackgroundAudit(receiver, config.audit.rate_mib_s, repair=repair)
    stop.wait()
    audit.close()
    if keeper is None:
        gate.close()
        return
    lease.end()
    if isinstance(control, Lends):
        control.lend(lease.left_s)  # before the run may go on without it
    keeper.leave()
