"""Which Python a process runs in: frameworks' pins and the driver's cannot meet in one."""

import os
import subprocess
import sys
from pathlib import Path

from dcr.errors import ConfigError
from dcr_recipes.config import RunConfig, RuntimeConfig, TrainerConfig
from dcr_recipes.runtime import arguments, sglang_arguments
from dcr_recipes.runtime.engines import kinds, of_kind

_LANES = {"vllm": ".venv-vllm", "sglang": ".venv-sglang", "megatron": ".venv-megatron"}
"""By the name of a runtime or trainer; ``make setup-NAME`` installs it, with the package of that name."""
_FIND = "import importlib.util as u, sys; print(*[n for n in sys.argv[1:] if u.find_spec(n) is None])"
_FIND_S = 120.0


def interpreter(side: RuntimeConfig | TrainerConfig) -> Path:
    """Python of one side's processes: the one named, the lane's beside this environment, or this one."""
    if side.interpreter:
        return Path(side.interpreter).expanduser().absolute()
    lane = _LANES.get(side.name)
    return Path(sys.executable) if lane is None else Path(sys.prefix).parent / lane / "bin/python"


def check_lanes(config: RunConfig) -> None:
    """Notice a missing or unfinished environment before anything is started; imports no framework.

    Raises:
        ConfigError: says how to install it.
    """
    _check_lane("trainer", config.trainer)
    for kind in kinds(config.runtime):
        _check_lane("runtime", of_kind(config.runtime, kind))


def _check_lane(group: str, side: RuntimeConfig | TrainerConfig) -> None:
    python = interpreter(side)
    if not os.access(python, os.X_OK) or not python.is_file():
        if side.interpreter:
            raise ConfigError(f"{group}.interpreter: {python} is no program; give the path of a Python")
        raise ConfigError(f"{group}={side.name}: there is no {python}; {_remedy(group, side)}")
    if python == Path(sys.executable) and side.name not in _LANES:
        return
    if missing := _missing(python, ["dcr_recipes", *([side.name] if side.name in _LANES else [])]):
        raise ConfigError(f"{group}={side.name}: {python} cannot import {missing}; {_remedy(group, side)}")


def _missing(python: Path, names: list[str]) -> str:
    """Those of ``names`` that ``python`` has no package of, in words.

    Raises:
        ConfigError: it does not run.
    """
    try:
        done = subprocess.run(
            [python, "-c", _FIND, *names], capture_output=True, text=True, timeout=_FIND_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as err:
        raise ConfigError(f"{python} does not run as a Python: {err}") from err
    return " and ".join(name for name in names if name in done.stdout.split())


def _remedy(group: str, side: RuntimeConfig | TrainerConfig) -> str:
    other = f"name a Python that has it: {group}.interpreter=PATH"
    return f"install it with: make setup-{side.name} (or {other})" if side.name in _LANES else other


def lane_environment(runtime: RuntimeConfig, role: str) -> dict[str, str]:
    """Variables of the serving processes (``role``: oracle or runtime) beyond those of every process."""
    if runtime.name == "vllm":
        return arguments.environment(runtime, serves=role == "runtime")
    return sglang_arguments.environment(runtime) if runtime.name == "sglang" else {}
