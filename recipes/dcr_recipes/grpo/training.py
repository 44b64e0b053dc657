"""One trainer rank of the recipe, assembled: what the main loop drives (``dcr_recipes.loop.Training``)."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from dcr.errors import IntegrityError
from dcr.model import AuditTable, RunId
from dcr_recipes.grpo.checkpoint import CheckpointStore, Committed
from dcr_recipes.grpo.learner import Learner
from dcr_recipes.grpo.metrics import StepMetrics
from dcr_recipes.grpo.proof import require_served
from dcr_recipes.grpo.rollout import Rollouts
from dcr_recipes.grpo.settings import GrpoSettings
from dcr_recipes.grpo.tasks import Task
from dcr_recipes.grpo.trainer import GrpoTrainer

if TYPE_CHECKING:
    from torch import nn


class GrpoTraining:
    """Learner, history and checkpoints of one rank. Every rank calls every method, in order."""

    def __init__(self, trainer: GrpoTrainer, checkpoints: CheckpointStore) -> None:
        self._trainer = trainer
        self._checkpoints = checkpoints

    @property
    def learner(self) -> Learner:
        """The policy in training."""
        return self._trainer.learner

    @property
    def history(self) -> list[StepMetrics]:
        """Metrics of every step so far, restored ones included."""
        return self._trainer.history

    def rollout_and_train(self, step: int, version: int) -> StepMetrics:
        """See ``GrpoTrainer.rollout_and_train``."""
        return self._trainer.rollout_and_train(step, version)

    def save(self, version: int) -> None:
        """Write this rank's checkpoint durably, as the weights that ``version`` is about to have."""
        self._checkpoints.save(version, self.learner.capture(), tuple(self.history))

    def require_not_ahead(self, committed: Committed) -> None:
        """See ``CheckpointStore.require_not_ahead``."""
        self._checkpoints.require_not_ahead(committed)

    def restore(self, committed: Committed) -> bool:
        """Install the checkpoint of ``committed``, or else the newest older one; true if it is the former.

        Version 0 at step 0 needs no checkpoint while nothing has been trained: the seed builds it.

        Raises:
            IntegrityError: there is no usable checkpoint.
        """
        checkpoint = self._checkpoints.load_matching(committed)
        if checkpoint is None:
            if (committed.version, committed.step) == (0, 0) and not self.history:
                return True
            checkpoint = self._checkpoints.load_newest_not_after(committed.version)
        if checkpoint is None:
            raise IntegrityError(
                f"no training checkpoint of version {committed.version} or earlier is complete; put one back"
            )
        self._trainer.restore(checkpoint)
        return (checkpoint.meta.version, checkpoint.meta.step) == (committed.version, committed.step)

    def prove(self, table: AuditTable, audit_key: str) -> None:
        """Check that the present weights serve exactly what ``table`` was committed with. A collective.

        Raises:
            IntegrityError: they do not; names the first tensors that differ.
        """
        require_served(self.gather(), table, audit_key)

    def gather(self) -> dict[str, torch.Tensor]:
        """The whole policy as a dense refit would send it, by canonical name. A collective."""
        return self.learner.gather()


@dataclass(frozen=True, slots=True)
class Start:
    """Where a training begins: FP32 ``model``, equal on all ranks, its ``task``, and its sizes and rates."""

    model: "nn.Module"
    task: Task
    settings: GrpoSettings


def assemble(
    start: Start, learner: Learner, *, checkpoints: Path, run: RunId, rollouts: Rollouts | None
) -> GrpoTraining:
    """This rank's training on the default process group, at step 0; ``learner`` has the start's model.

    Only rank 0 has ``rollouts``.
    """
    trainer = GrpoTrainer(learner, start.settings, task=start.task, rollouts=rollouts)
    store = CheckpointStore(checkpoints, run, rank=dist.get_rank(), world_size=dist.get_world_size())
    return GrpoTraining(trainer, store)
