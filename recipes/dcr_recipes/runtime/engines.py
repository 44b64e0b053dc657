"""Which engine an instance is: all of a run's are of one kind, or they take turns (``runtime=mixed``)."""

from dataclasses import replace

from dcr_recipes.config import RuntimeConfig

MIXED = "mixed"
ENGINES = ("vllm", "sglang")
"""Those with workers in processes of their own, and an environment of their own."""


def kinds(runtime: RuntimeConfig) -> tuple[str, ...]:
    """Of the instances, in order of their first one."""
    return tuple(dict.fromkeys(runtime.engines)) if runtime.name == MIXED else (runtime.name,)


def kind_of(runtime: RuntimeConfig, index: int) -> str:
    """Of instance ``index``."""
    return runtime.engines[index % len(runtime.engines)] if runtime.name == MIXED else runtime.name


def of_kind(runtime: RuntimeConfig, kind: str) -> RuntimeConfig:
    """The configuration of an instance that is a ``kind``."""
    return replace(runtime, name=kind)


def oracle_name(index: int) -> str:
    """Of the instance with which those of kind ``index`` are compared."""
    return "oracle" if index == 0 else f"oracle-{index}"
