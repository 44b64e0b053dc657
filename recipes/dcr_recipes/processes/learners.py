"""The policy in training inside a trainer process, whichever framework trains it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from dcr_recipes.grpo.learner import Learner
from dcr_recipes.processes.border import Context

if TYPE_CHECKING:
    from dcr_recipes.config import TrainerConfig
    from dcr_recipes.grpo.training import Start


@contextmanager
def framework(trainer: "TrainerConfig") -> Iterator[None]:
    """What the framework needs around everything that a trainer process does."""
    if trainer.name == "megatron":
        from dcr_adapters.megatron.cpu import on_cpu

        with on_cpu():
            logging.getLogger().setLevel(logging.WARNING)  # the Bridge's import has lowered it
            yield
    else:
        yield


def learner_of(context: Context, start: "Start") -> Learner:
    """Shard the start's model over the default process group as the configuration says.

    Raises:
        ConfigError: the batch cannot be shared evenly, or the framework does not know the model.
        UnsupportedPath: a layout that cannot be exact.
    """
    trainer = context.config.trainer
    if trainer.name == "megatron":
        from dcr_recipes.megatron.build import Degrees, megatron_learner

        degrees = Degrees(tensor=trainer.tensor_parallel, pipeline=trainer.pipeline_parallel)
        return megatron_learner(start, degrees)
    from dcr_recipes.grpo.fsdp import fsdp_learner

    return fsdp_learner(start.model, start.settings)
