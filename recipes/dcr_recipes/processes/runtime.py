"""One serving instance: a transformers model over packed storage, refitted by delta or by dense files."""

import logging
import time

from dcr import observe
from dcr.commit.remote import Party
from dcr.errors import IntegrityError, RefitError, UnsupportedPath
from dcr.model import ReceiverReport, ReceiverState
from dcr.refit import await_record, compose_receiver
from dcr_adapters.hf.gate import ServingGate
from dcr_adapters.hf.loader import HfLoader, build
from dcr_adapters.hf.prompt_cache import PromptCache
from dcr_adapters.hf.pump import PumpedReceiver
from dcr_adapters.hf.worker import RuntimeWorker
from dcr_recipes.config import RunConfig
from dcr_recipes.models.build import served_config
from dcr_recipes.processes.border import Context, enter
from dcr_recipes.processes.serving import announce, site, wait_for_the_end

logger = logging.getLogger(__name__)
_PAUSE_S = 0.2


def main(context: Context) -> None:
    """Serve; in a delta run, come to the committed version first, also after a restart (P11)."""
    config = context.config
    port = config.runtime.port + context.index if config.runtime.port else 0
    if config.refit == "dense":
        announce(context, dense_worker(context).handlers(), port=port)
    else:
        announce(context, _delta_worker(context).handlers(), port=port)
        be_admitted(context.name, site(context).coordinator(config.commit))
    wait_for_the_end()


def model(config: RunConfig) -> HfLoader:
    """The runtime's model; its weights are not the policy's before the first load."""
    with observe.stage("process.build"):
        return build(served_config(config.model, config.seed), config.runtime.packed, "bfloat16")


def dense_worker(context: Context) -> RuntimeWorker:
    """An instance that only ever loads files through the stock loader."""
    return _worker(context, model(context.config), ServingGate(), None)


def _delta_worker(context: Context) -> RuntimeWorker:
    config, place = context.config, site(context)
    loader, gate = model(config), ServingGate()
    with observe.stage("process.wait"):
        record = await_record(place, config.commit, deadline_s=config.commit.collect_deadline_s)
    agent = compose_receiver(
        context.name, place, record, loader=loader, gate=gate, config=config.refit_config()
    )
    return _worker(context, loader, gate, agent)


def _worker(
    context: Context, loader: HfLoader, gate: ServingGate, agent: PumpedReceiver | None
) -> RuntimeWorker:
    runtime = context.config.runtime
    return RuntimeWorker(
        context.name,
        loader.model,
        loader=loader,
        gate=gate,
        agent=agent,
        threads=runtime.threads,
        prompt_cache=PromptCache(runtime.prompt_cache_mib << 20),
    )


def be_admitted(name: str, coordinator: Party) -> None:
    """Ask until this instance is clean: a transition in progress, or a restart, may come in between.

    Raises:
        IntegrityError: the committed version cannot be rebuilt or proven here.
        UnsupportedPath: the loader cannot take it.
    """
    told = ""
    while True:
        try:
            deadline = coordinator.config.restore_deadline_s
            report = coordinator.patiently("admit", ReceiverReport, deadline, receiver=name)
            if report.state is ReceiverState.CLEAN:
                return
            failure = f"{report.state}({report.version})"
        except (IntegrityError, UnsupportedPath):
            raise
        except RefitError as err:
            failure = f"{type(err).__name__}: {err}"
        if failure != told:
            logger.warning("%s is not admitted yet: %s", name, failure)
        told = failure
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    enter("runtime-{}", main)
