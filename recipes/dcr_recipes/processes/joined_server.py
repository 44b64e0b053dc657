"""A server that somebody else started, as one more instance of a run: ``dcr receive``."""

import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from dcr.commit.remote import Party
from dcr.errors import RefitError
from dcr.receiver.lease import Lease
from dcr.receiver.workers.control import EngineControl, Lends
from dcr.receiver.workers.gate import EngineGate
from dcr.receiver.workers.ranks import Workers
from dcr.refit import await_record
from dcr.refit.aside import unless
from dcr.refit.background import BackgroundAudit
from dcr.refit.lease import LeaseKeeper, leave
from dcr.refit.pump import Pump, PumpedReceiver
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

    Then it answers no more, and the run goes on without it. Nobody waits for what ``stop`` interrupts: it is
    left behind in threads that end with the process.

    Raises:
        ConfigError: the engine takes no deltas, or obeys no lease while the run has them.
        Unreachable: the engine does not answer.
        IntegrityError: the committed version cannot be rebuilt or proven there.
        UnsupportedPath: its loader cannot take it.
    """
    server = unless(stop, partial(_announced, Context(name, 0, 1, folder, config), control), "announce")
    if server is None:
        return
    be_admitted(name, server.coordinator, stop)
    if stop.is_set():
        _give_up(server)
        return
    print(f"{name} is admitted and serves", flush=True)
    _serve(server, config.audit.rate_mib_s, stop)


@dataclass(frozen=True, slots=True)
class _Server:
    """An engine that the run can find."""

    control: EngineControl
    gate: EngineGate
    lease: Lease
    receiver: PumpedReceiver
    coordinator: Party

    @property
    def is_leased(self) -> bool:
        """Whether it serves under ``lease``."""
        return self.coordinator.config.lease_s > 0


def _announced(context: Context, control: EngineControl) -> _Server:
    config, place, gate, lease = context.config, site(context), EngineGate(control), Lease()
    record = await_record(place, config.commit, deadline_s=config.commit.collect_deadline_s)
    if config.commit.lease_s:
        gate.serve_under(lease)
    context.folder.exchange.mkdir(exist_ok=True)
    receiver = receiver_of(context, Workers(control, folder=context.folder.exchange), gate)(record)
    announce(context, Pump(receiver, idle_s=config.transport.poll_s).handlers())
    print(f"{context.name} is being restored to version {record.version} or a later one", flush=True)
    return _Server(control, gate, lease, receiver, place.coordinator(config.commit))


def _serve(server: _Server, audit_mib_s: float, stop: threading.Event) -> None:
    """Until ``stop``; nothing asks to be admitted after it."""
    receiver, coordinator = server.receiver, server.coordinator
    repair = partial(be_admitted, receiver.name, coordinator, stop)
    keeper = LeaseKeeper(receiver, server.lease, coordinator, on_refused=repair) if server.is_leased else None
    audit = BackgroundAudit(receiver, audit_mib_s, repair=repair)
    stop.wait()
    if keeper is None:
        server.gate.close()
        leave(receiver, coordinator)
    else:
        server.lease.end()
        if isinstance(server.control, Lends):
            server.control.lend(server.lease.left_s)  # before the run may go on without it
        keeper.leave()
    audit.close()


def _give_up(server: _Server) -> None:
    """It never served; that it was asked for may still be heard, so the run is told if it can be."""
    server.lease.end()
    with suppress(RefitError):
        if not server.is_leased:
            server.gate.close()
        leave(server.receiver, server.coordinator)
