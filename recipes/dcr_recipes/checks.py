"""What no single key can tell: values that do not go together."""

from collections.abc import Mapping

from dcr.errors import ConfigError
from dcr_recipes.config import RunConfig
from dcr_recipes.models.catalogue import TINY
from dcr_recipes.probe import LONG_PROMPT, NUM_TOKENS
from dcr_recipes.runtime import arguments, sglang_arguments
from dcr_recipes.runtime.engines import ENGINES, MIXED, kinds

PROBE_TOKENS = len(LONG_PROMPT) + NUM_TOKENS
"""Prompt and answer of the probe that an engine with a prefix cache is asked."""


def check_together(config: RunConfig) -> None:
    """Refuse combinations that would fail later, or mean something else than they say.

    Raises:
        ConfigError: names the key to change.
    """
    if config.model == TINY and config.recipe.task != "random_tokens":
        raise ConfigError(
            f"recipe.task: model=tiny has no tokenizer for {config.recipe.task}; use recipe=grpo_tiny"
        )
    if config.faults.kill_runtime_every and config.refit != "dcr":
        raise ConfigError("faults.kill_runtime_every: kills while a delta is applied, so it needs refit=dcr")
    _check_absences(config)
    _check_trainer(config)
    if config.commit.name == "etcd" and not config.commit.endpoints:
        raise ConfigError("commit.endpoints: commit.name=etcd needs client URLs, [http://host:2379, ...]")
    if config.commit.name != "etcd" and config.commit.endpoints:
        raise ConfigError(f"commit.endpoints: commit={config.commit.name} has none; use commit=etcd")
    _check_transport(config)
    _check_runtime(config)


def _check_trainer(config: RunConfig) -> None:
    trainer, prompts = config.trainer, config.recipe.prompts
    for key in ("tensor_parallel", "pipeline_parallel"):
        if trainer.name != "megatron" and getattr(trainer, key) != 1:
            raise ConfigError(f"trainer.{key}: trainer={trainer.name} has none; use trainer=megatron")
    share = trainer.tensor_parallel * trainer.pipeline_parallel
    if trainer.ranks % share:
        raise ConfigError(
            "trainer.ranks: must be a multiple of trainer.tensor_parallel x trainer.pipeline_parallel = "
            f"{share}, got {trainer.ranks}"
        )
    replicas = trainer.ranks // share
    if prompts % replicas:
        what = "trainer.ranks" if share == 1 else "trainer.ranks / (tensor x pipeline parallel)"
        raise ConfigError(f"recipe.prompts: must be a multiple of {what} = {replicas}, got {prompts}")


def _check_transport(config: RunConfig) -> None:
    told = config.transport
    if config.commit.name == "s3" and told.name != "s3":
        raise ConfigError("commit.name: commit=s3 keeps the record in the run's bucket; use transport=s3")
    if told.name != "s3":
        _require_no_bucket(config)
        return
    if told.path:
        raise ConfigError("transport.path: transport=s3 has a bucket, no folder; use transport.prefix")
    if told.endpoint and not told.bucket:
        raise ConfigError(f"transport.bucket: name a bucket that exists at {told.endpoint}")
    if told.endpoint and not told.endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"transport.endpoint: {told.endpoint!r} must start with http:// or https://")


def _require_no_bucket(config: RunConfig) -> None:
    for key in ("bucket", "endpoint", "region", "prefix"):
        if getattr(config.transport, key):
            raise ConfigError(
                f"transport.{key}: transport={config.transport.name} has none; use transport=s3"
            )


def _check_absences(config: RunConfig) -> None:
    faults = config.faults
    if not faults.restart_after_steps:
        return
    if not faults.kill_runtime_every:
        raise ConfigError("faults.restart_after_steps: nobody is killed; set faults.kill_runtime_every")
    needed = faults.restart_after_steps // faults.kill_runtime_every + 2
    if config.runtime.instances < needed:
        raise ConfigError(
            f"faults.restart_after_steps: {needed - 1} runtimes would be away at a time, one must be left, so"
            f" runtime.instances must be at least {needed}, got {config.runtime.instances}"
        )


_OWNED: Mapping[str, Mapping[str, str]] = {
    "vllm": arguments.OWNED,
    "sglang": sglang_arguments.OWNED,
    MIXED: {},
}
"""Engine -> argument -> what to do instead of giving it."""


def _check_engines(config: RunConfig) -> None:
    """``mixed`` names its kinds, and has nothing that only one of them could take."""
    runtime = config.runtime
    if runtime.name != MIXED:
        if runtime.engines:
            raise ConfigError(f"runtime.engines: runtime={runtime.name} is one kind; use runtime={MIXED}")
        return
    if not runtime.engines or (unknown := set(runtime.engines) - set(ENGINES)):
        told = ", ".join(sorted(unknown)) if runtime.engines else "none"
        raise ConfigError(f"runtime.engines: accepted are {', '.join(ENGINES)}; got {told}")
    if runtime.instances < len(kinds(runtime)):
        raise ConfigError(
            f"runtime.instances: {len(kinds(runtime))} kinds need as many, got {runtime.instances}"
        )
    for key in ("arguments", "interpreter"):
        if getattr(runtime, key):
            raise ConfigError(f"runtime.{key}: each kind of runtime={MIXED} would need its own; leave it out")


def _check_runtime(config: RunConfig) -> None:
    runtime, recipe = config.runtime, config.recipe
    _check_engines(config)
    if runtime.name == "hf":
        if runtime.tensor_parallel != 1 or runtime.arguments:
            key = "arguments" if runtime.arguments else "tensor_parallel"
            raise ConfigError(
                f"runtime.{key}: runtime={runtime.name} keeps a model in one process; use runtime=vllm"
            )
        return
    for name in runtime.arguments:
        if remedy := _OWNED[runtime.name].get(name):
            raise ConfigError(f"runtime.arguments: {name} is the run's to decide; {remedy}")
    if runtime.probe and runtime.context_tokens < PROBE_TOKENS:
        raise ConfigError(
            f"runtime.context_tokens: the probe takes {PROBE_TOKENS}, got {runtime.context_tokens};"
            " raise it or set runtime.probe=false"
        )
    longest = recipe.prompt_tokens + recipe.response_tokens
    if recipe.task == "random_tokens" and longest > runtime.context_tokens:
        raise ConfigError(
            f"runtime.context_tokens: must be at least recipe.prompt_tokens + recipe.response_tokens = "
            f"{longest}, got {runtime.context_tokens}"
        )
