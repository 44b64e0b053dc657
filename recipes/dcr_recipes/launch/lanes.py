"""Which Python a process runs in: an inference engine's pins and the trainer's cannot meet in one."""

import os
import sys
from pathlib import Path

from dcr.errors import ConfigError
from dcr_recipes.config import RuntimeConfig
from dcr_recipes.runtime.arguments import environment

_LANES = {"vllm": ".venv-vllm"}
_SETUP = "make setup-vllm"


def interpreter(runtime: RuntimeConfig) -> Path:
    """Python of the serving processes: the one named, the lane's beside this environment, or this one."""
    if runtime.interpreter:
        return Path(runtime.interpreter).expanduser().absolute()
    lane = _LANES.get(runtime.name)
    return Path(sys.executable) if lane is None else Path(sys.prefix).parent / lane / "bin/python"


def check_lane(runtime: RuntimeConfig) -> None:
    """Notice a missing environment before anything is started.

    Raises:
        ConfigError: says how to install it.
    """
    python = interpreter(runtime)
    if os.access(python, os.X_OK) and python.is_file():
        return
    if runtime.interpreter:
        raise ConfigError(f"runtime.interpreter: {python} is no program; give the path of a Python")
    raise ConfigError(
        f"runtime={runtime.name}: there is no {python}; install it with: {_SETUP} "
        "(or name a Python that has it: runtime.interpreter=PATH)"
    )


def lane_environment(runtime: RuntimeConfig, role: str) -> dict[str, str]:
    """Variables of the serving processes (``role``: oracle or runtime) beyond those of every process."""
    return environment(runtime, serves=role == "runtime") if runtime.name == "vllm" else {}
