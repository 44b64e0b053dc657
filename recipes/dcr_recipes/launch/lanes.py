"""Which Python a process runs in: frameworks' pins and the driver's cannot meet in one."""

import os
import sys
from pathlib import Path

from dcr.errors import ConfigError
from dcr_recipes.config import RunConfig, RuntimeConfig, TrainerConfig
from dcr_recipes.runtime import arguments, sglang_arguments
from dcr_recipes.runtime.engines import kinds, of_kind

_LANES = {"vllm": ".venv-vllm", "sglang": ".venv-sglang", "megatron": ".venv-megatron"}
"""By the name of a runtime or trainer; ``make setup-NAME`` installs it."""


def interpreter(side: RuntimeConfig | TrainerConfig) -> Path:
    """Python of one side's processes: the one named, the lane's beside this environment, or this one."""
    if side.interpreter:
        return Path(side.interpreter).expanduser().absolute()
    lane = _LANES.get(side.name)
    return Path(sys.executable) if lane is None else Path(sys.prefix).parent / lane / "bin/python"


def check_lanes(config: RunConfig) -> None:
    """Notice a missing environment before anything is started.

    Raises:
        ConfigError: says how to install it.
    """
    _check_lane("trainer", config.trainer)
    for kind in kinds(config.runtime):
        _check_lane("runtime", of_kind(config.runtime, kind))


def _check_lane(group: str, side: RuntimeConfig | TrainerConfig) -> None:
    python = interpreter(side)
    if os.access(python, os.X_OK) and python.is_file():
        return
    if side.interpreter:
        raise ConfigError(f"{group}.interpreter: {python} is no program; give the path of a Python")
    raise ConfigError(
        f"{group}={side.name}: there is no {python}; install it with: make setup-{side.name} "
        f"(or name a Python that has it: {group}.interpreter=PATH)"
    )


def lane_environment(runtime: RuntimeConfig, role: str) -> dict[str, str]:
    """Variables of the serving processes (``role``: oracle or runtime) beyond those of every process."""
    if runtime.name == "vllm":
        return arguments.environment(runtime, serves=role == "runtime")
    return sglang_arguments.environment(runtime) if runtime.name == "sglang" else {}
