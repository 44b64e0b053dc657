"""Engines that take no deltas as they were configured, by vLLM's own settings (DESIGN R11, R19).

Under each of these what lies in the resident tensors is not, or not for long, what requests are computed
from. What can only be seen in loaded modules is in ``refusals``.
"""

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, NamedTuple

from dcr.errors import ConfigError


class _Rule(NamedTuple):
    """Whether a value fits, what is wrong with others, and the remedy. ``device``: asked there only."""

    fits: Callable[[Any], bool]
    why: str
    instead: str
    device: str = ""


def _off(value: object) -> bool:
    return not value


def _among(*values: object) -> Callable[[object], bool]:
    return lambda value: value in values


_OUTSIDE = "keys and values of old weights may stay outside of the engine, or come from another one's"
_EMPTIED = (
    "leave it out, or offload to the CPU's memory alone (OffloadingConnector, SimpleCPUOffloadConnector)"
)
_FOLDED = "compiled code keeps copies of weights as constants"
_REPLICAS = "vLLM answers for the first of several replicas, the others may keep old weights"
_ONE_ENGINE = "give each replica an engine of its own, without data_parallel_size"
_DATA_PARALLEL = "parallel_config.data_parallel_size"
_RULES: dict[str, _Rule] = {
    "parallel_config.enable_eplb": _Rule(
        _off,
        "a rebalance moves experts between slots, while vLLM's loader goes on with the first placement",
        "start vLLM without enable_eplb",
    ),
    _DATA_PARALLEL: _Rule(_among(1), _REPLICAS, _ONE_ENGINE),
    "load_config.load_format": _Rule(
        lambda value: value != "ipc_cache",
        "weights lie in the memory of a cache that other engines map",
        "choose another load_format",
    ),
    "offload_config.prefetch.offload_group_size": _Rule(
        _off,
        "parameters are buffers that layers share, refilled from host copies at every step",
        "start vLLM without offload_group_size",
    ),
    "model_config.enable_sleep_mode": _Rule(
        _off,
        "weights leave their memory in a sleep, and need not come back",
        "start vLLM without enable_sleep_mode",
    ),
    "compilation_config.inductor_compile_config.freezing": _Rule(_off, _FOLDED, "leave freezing out"),
    "compilation_config.inductor_compile_config.max_autotune": _Rule(
        _off, f"on the CPU vLLM freezes with it: {_FOLDED}", "leave max_autotune out", device="cpu"
    ),
    # a connector counts only if its reset_cache was seen to forget everything: vLLM takes None for success
    "kv_transfer_config.kv_connector": _Rule(
        _among("OffloadingConnector", "SimpleCPUOffloadConnector"), _OUTSIDE, _EMPTIED
    ),
    "kv_transfer_config.kv_connector_module_path": _Rule(_off, _OUTSIDE, _EMPTIED),
    # with tiers below the CPU's memory only the first is emptied
    "kv_transfer_config.kv_connector_extra_config.spec_name": _Rule(
        _among("CPUOffloadingSpec"), _OUTSIDE, _EMPTIED
    ),
    "ec_transfer_config.ec_connector": _Rule(
        _off, "embeddings of old weights may come from outside of the engine", "leave ec_transfer_config out"
    ),
    "speculative_config.method": _Rule(
        _among("ngram", "ngram_gpu", "suffix"),
        "the draft model keeps its old weights",
        "start vLLM without speculative_config, or with method ngram",
    ),
}


def refused(config: Any) -> dict[str, str]:
    """Setting -> its value, what is wrong with it, and the remedy. Empty if deltas can be followed.

    ``config``: a ``VllmConfig``. Settings that are None, or that a version does not have, are no concern.
    """
    device = _value(config, "device_config.device_type")
    found = {name: _value(config, name) for name, rule in _RULES.items() if rule.device in ("", device)}
    return {
        name: f"{value}: {_RULES[name].why}; {_RULES[name].instead}"
        for name, value in found.items()
        if value is not None and not _RULES[name].fits(value)
    }


def require_one_engine(config: Any) -> None:
    """Refuse a front of several replicas: its workers cannot tell, and it hides all answers but one's.

    Raises:
        ConfigError: names the setting, why, and the remedy.
    """
    if reason := refused(config).get(_DATA_PARALLEL):
        raise ConfigError(f"the engine was started with {_DATA_PARALLEL}={reason}")


def require_whole(num_workers: int, world: int) -> None:
    """The same of a server: ``num_workers`` have answered, of ``world`` with those of all replicas.

    Raises:
        ConfigError: as ``require_one_engine``.
    """
    if num_workers != world:
        raise ConfigError(
            f"{num_workers} of {world} workers of the server answer: {_REPLICAS}; {_ONE_ENGINE}"
        )


def _value(config: Any, name: str) -> Any:
    return reduce(_part, name.split("."), config)


def _part(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
