"""A run's injected faults inside a worker of an engine, as the process ``<name>.rank-<rank>``."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dcr import observe
from dcr_recipes.layout import RunFolder


def told_of(folder: RunFolder, name: str, incarnation: int) -> dict[str, Any]:
    """What a worker must be told to find its run: plain values, for JSON."""
    return {"folder": str(folder.root), "name": name, "incarnation": incarnation}


def listen(stack: ExitStack, told: Mapping[str, Any] | None, rank: int) -> None:
    """Carry out the faults of the run that ``told`` names, for as long as ``stack`` is open."""
    from dcr_recipes.compose import load
    from dcr_recipes.faults import journal, killer
    from dcr_recipes.scheduled_kills import scheduled_killer

    if told is None:
        return
    folder, name = RunFolder(Path(told["folder"])), f"{told['name']}.rank-{rank}"
    config, incarnation = load(folder.config), int(told["incarnation"])
    faults = config.faults
    if not faults.kill and not faults.kill_runtime_every:
        return
    stack.enter_context(observe.listening(journal(name, incarnation, folder.faults)))
    stack.enter_context(observe.listening(killer(faults.kill, name, incarnation, folder.faults)))
    if rank == 0:
        stack.enter_context(observe.listening(scheduled_killer(config, told["name"], folder.faults)))
