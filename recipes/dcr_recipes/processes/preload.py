"""What the processes of a run import and compile, for a process that is warm before they start.

Nothing here may start a thread, draw a random number or build a model: children must be as if they had been
started from nothing (``launch.warm_process``).
"""

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from dcr_recipes.config import RunConfig
from dcr_recipes.layout import RunFolder

_LATE = (
    "dcr.audit.compiled", "dcr.codec.compiled", "dcr.receiver.local", "dcr.source.scan_compiled",
    "dcr_recipes.faults", "dcr_recipes.grpo.stream", "dcr_recipes.processes.host_hf",
    "dcr_recipes.scheduled_kills", "dcr_recipes.trace.writer", "httpcore", "numba", "pydantic.dataclasses",
)  # fmt: skip
"""Imported by the processes and their libraries only when they need it, which is in every run."""
_COMPILED_FROM = 1 << 12
"""Lanes from which ``dcr.audit`` compiles (``kernels.COMPILE_FROM``)."""


def preload(run_dir: Path, modules: Sequence[str]) -> None:
    """Import ``modules``, which are programs, and all that they need; each is run anew under its name."""
    for name in modules:
        import_module(name)
        del sys.modules[name]
    folder = RunFolder(run_dir)
    if folder.config.exists():
        from dcr_recipes.compose import load

        _preload_run(load(folder.config))


def _preload_run(config: RunConfig) -> None:
    from dcr_recipes.models.build import import_model

    for name in _LATE:
        import_module(name)
    import_model(config.model)
    if config.refit == "dcr":
        _compile()


def _compile() -> None:
    """Compile the audit sums of BF16 bits: they are kept on no disk, and owners and runtimes need them."""
    import numpy as np

    from dcr.audit import digest_tensor

    digest_tensor("0" * 32, "", np.zeros(_COMPILED_FROM, np.uint16))
