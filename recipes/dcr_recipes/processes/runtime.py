"""One serving instance, refitted by delta or by dense files."""

import logging
import threading
from functools import partial

from dcr import observe
from dcr.commit.remote import Party
from dcr.errors import IntegrityError, RefitError, UnsupportedPath
from dcr.model import ReceiverReport, ReceiverState
from dcr.receiver.lease import Lease
from dcr.refit import await_record
from dcr.refit.aside import unless
from dcr.refit.background import BackgroundAudit
from dcr.refit.lease import LeaseKeeper
from dcr_recipes.processes.border import Context, enter
from dcr_recipes.processes.host import build
from dcr_recipes.processes.serving import announce, site, wait_for_the_end
from dcr_recipes.receiver_figures import TellingReceiver
from dcr_recipes.scheduled_kills import stay_away
from dcr_recipes.summary import MetricsLog

logger = logging.getLogger(__name__)
_PAUSE_S = 0.2


def main(context: Context) -> None:
    """Serve; in a delta run, come to the committed version first, also after a restart (P11)."""
    config = context.config
    port = config.runtime.port + context.index if config.runtime.port else 0
    if config.refit == "dense":
        announce(context, build(context).worker(context.name).handlers(), port=port)
    else:
        _serve_deltas(context, port)
    wait_for_the_end()


def _serve_deltas(context: Context, port: int) -> None:
    config, place = context.config, site(context)
    metrics = MetricsLog(context.folder.metrics)
    stay_away(config, context.name, context.folder.faults, steps_done=lambda: len(metrics.rows()))
    host = build(context)
    with observe.stage("process.wait"):
        record = await_record(place, config.commit, deadline_s=config.commit.collect_deadline_s)
    agent = host.receive(record)
    lease = Lease()
    if config.commit.lease_s:
        host.gate.serve_under(lease)
    announce(context, host.worker(context.name, agent).handlers(), port=port)
    coordinator = place.coordinator(config.commit)
    be_admitted(context.name, coordinator)
    if config.commit.lease_s:
        LeaseKeeper(agent, lease, coordinator, on_refused=lambda: be_admitted(context.name, coordinator))
    telling = TellingReceiver(agent, context.folder.receivers / f"{context.name}.json")
    telling.tell()
    rate = config.audit.rate_mib_s
    BackgroundAudit(telling, rate, repair=lambda: be_admitted(context.name, coordinator))


def be_admitted(name: str, coordinator: Party, stop: threading.Event | None = None) -> None:
    """Ask until this instance is clean, or ``stop`` is set; None: only a kill ends this process.

    A transition in progress, or a restart, may come in between.

    Raises:
        IntegrityError: the committed version cannot be rebuilt or proven here.
        UnsupportedPath: the loader cannot take it.
    """
    stop, told = stop or threading.Event(), ""
    deadline_s = coordinator.config.restore_deadline_s
    ask = partial(coordinator.now, "admit", ReceiverReport, deadline_s, receiver=name)
    while not stop.is_set():
        try:
            report = unless(stop, ask, "admit")
            if report is None or report.state is ReceiverState.CLEAN:
                return
            failure = f"{report.state}({report.version})"
        except (IntegrityError, UnsupportedPath):
            raise
        except RefitError as err:
            failure = f"{type(err).__name__}: {err}"
        if failure != told:
            logger.warning("%s is not admitted yet: %s", name, failure)
        told = failure
        stop.wait(_PAUSE_S)


if __name__ == "__main__":
    enter("runtime-{}", main)
