"""What an engine's process needs before it can start, whichever engine it is."""

import difflib
from collections.abc import Iterable
from pathlib import Path

from dcr.errors import ConfigError
from dcr_recipes.models.build import served_config
from dcr_recipes.processes.border import Context


def model_folder(context: Context) -> Path:
    """A folder with the model's configuration; weights are not read from it."""
    served = served_config(context.config.model)
    if isinstance(served, Path):
        return served
    folder = context.folder.served / context.name
    served.save_pretrained(folder)
    return folder


def require_known(engine: str, arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that the ``engine`` of that name does not have.

    Raises:
        ConfigError: names the argument, and what it may have been meant to be.
    """
    accepted = list(known)
    for name in arguments:
        if name not in accepted:
            near = difflib.get_close_matches(name, accepted)
            hint = f"nearest: {', '.join(near)}" if near else "leave it out"
            raise ConfigError(f"runtime.arguments: {engine} has no engine argument {name!r}; {hint}")
