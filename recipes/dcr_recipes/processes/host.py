"""The runtime inside a serving process, whichever it is."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dcr.model import CommitRecord
from dcr.receiver.gate import ServingGate
from dcr.refit.pump import PumpedReceiver
from dcr_recipes.processes.border import Context
from dcr_recipes.runtime.engines import kind_of, kinds, of_kind
from dcr_recipes.runtime.ports import Engine, Storage
from dcr_recipes.runtime.worker import RuntimeWorker


@dataclass(frozen=True, slots=True)
class Host:
    """A built runtime; its weights are not the policy's before the first load.

    ``receive`` composes the receiver's agent for the run that a record names; it looks for payloads every
    ``poll_s``.
    """

    engine: Engine
    storage: Storage
    gate: ServingGate
    receive: Callable[[CommitRecord], PumpedReceiver]
    poll_s: float

    def worker(self, name: str, agent: PumpedReceiver | None = None) -> RuntimeWorker:
        """What the process serves; without ``agent`` an instance that the stock loader alone ever fills."""
        return RuntimeWorker(
            name, self.engine, storage=self.storage, gate=self.gate, agent=agent, poll_s=self.poll_s
        )


def build(context: Context) -> Host:
    """Build the runtime that the configuration names.

    Raises:
        ConfigError: the model or an argument does not fit it.
    """
    runtime = context.config.runtime
    context = _as_kind(context, kind_of(runtime, context.index))
    if context.config.runtime.name == "vllm":
        from dcr_recipes.processes import host_vllm

        return host_vllm.build(context)
    if context.config.runtime.name == "sglang":
        from dcr_recipes.processes import host_sglang

        return host_sglang.build(context)
    from dcr_recipes.processes import host_hf

    return host_hf.build(context)


def build_oracle(context: Context) -> RuntimeWorker:
    """The instance that all others are compared with: nothing but the stock loader ever writes to it.

    Raises:
        ConfigError: as ``build``.
    """
    context = _as_kind(context, kinds(context.config.runtime)[context.index])
    if context.config.runtime.name == "vllm":
        from dcr_recipes.processes import host_vllm

        return host_vllm.build_silent(context)
    if context.config.runtime.name == "sglang":
        from dcr_recipes.processes import host_sglang

        return host_sglang.build_silent(context)
    return build(context).worker(context.name)


def _as_kind(context: Context, kind: str) -> Context:
    """As if all instances were of ``kind``."""
    config = context.config
    return replace(context, config=replace(config, runtime=of_kind(config.runtime, kind)))
