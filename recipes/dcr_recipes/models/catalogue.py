"""``model=...``: names and paths, what they stand for, and where the files are."""

import os
import subprocess
import sys
from collections import deque
from pathlib import Path

from dcr.errors import ConfigError
from dcr_recipes.errors import RunFailed
from dcr_recipes.models.cache import Tell, ensure
from dcr_recipes.models.smollm2 import SMOLLM2, source
from dcr_recipes.processes.border import PARENT

TINY = "tiny"
CACHED = {"smollm2": SMOLLM2}
NAMES = (*CACHED, TINY)
_TAIL_LINES = 5


def canonical(model: str) -> str:
    """``model`` as a run remembers it: a known name, or the absolute path of a checkpoint folder."""
    return model if model in NAMES else str(Path(model).expanduser().absolute())


def folder_of(model: str) -> Path | None:
    """The checkpoint folder that ``model`` stands for; None for the tiny model, which has none."""
    if model == TINY:
        return None
    return CACHED[model].folder if model in CACHED else Path(model)


def check(model: str) -> None:
    """Notice, before anything is started, a model that cannot be had.

    Raises:
        ConfigError: no such model, no complete checkpoint at that path, or its package is not installed.
    """
    if model in CACHED:
        if not CACHED[model].folder.exists():
            source()
    elif model != TINY:
        _check_folder(Path(model))


def prepare(model: str, tell: Tell) -> None:
    """Make sure that a cached model is there and is the right one; ``tell`` says what takes time.

    Raises:
        IntegrityError: the conversion made other weights than the pinned ones.
        RunFailed: the conversion failed.
    """
    if model in CACHED:
        ensure(CACHED[model], lambda folder: _convert(model, folder, tell), tell)


def _check_folder(folder: Path) -> None:
    known = f"the models by name are {', '.join(NAMES)}"
    if not folder.is_dir():
        raise ConfigError(f"model: {folder} is not a folder; give one with a checkpoint ({known})")
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"model: {folder} has no config.json, so it is no Hugging Face checkpoint ({known})"
        )
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"model: {folder} has no *.safetensors; save the checkpoint in that format")


def _convert(model: str, folder: Path, tell: Tell) -> None:
    tell(f"preparing {model}: converting its package once (about half a minute) into {folder.parent}")
    argv = [sys.executable, "-m", "dcr_recipes.models.smollm2", str(folder)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", PARENT: str(os.getpid())}
    done = subprocess.run(argv, capture_output=True, text=True, env=env, check=False)
    if done.returncode:
        tail = "\n".join(f"  {line}" for line in deque(done.stderr.splitlines(), _TAIL_LINES))
        raise RunFailed(f"converting {model} ended with code {done.returncode}:\n{tail}")
    tell(f"{model} is ready in {folder.with_suffix('')}")
