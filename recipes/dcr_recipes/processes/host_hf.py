"""A transformers model over packed storage, in the serving process itself."""

from dcr import observe
from dcr.receiver.gate import ServingGate
from dcr.refit import compose_receiver
from dcr_adapters.hf import loader as hf
from dcr_adapters.hf.prompt_cache import PromptCache
from dcr_recipes.models.build import served_config
from dcr_recipes.processes.border import Context
from dcr_recipes.processes.host import Host
from dcr_recipes.processes.serving import refit_of, site
from dcr_recipes.runtime.hf import HfEngine, LoaderStorage


def build(context: Context) -> Host:
    """See ``dcr_recipes.processes.host.build``."""
    config, runtime = context.config, context.config.runtime
    with observe.stage("process.build"):
        loader = hf.build(served_config(config.model), runtime.packed, "bfloat16")
    gate = ServingGate()
    return Host(
        HfEngine(loader.model, PromptCache(runtime.prompt_cache_mib << 20), threads=runtime.threads),
        LoaderStorage(loader),
        gate,
        lambda record: compose_receiver(
            context.name, site(context), record, loader=loader, gate=gate, config=refit_of(context)
        ),
        config.transport.poll_s,
    )
