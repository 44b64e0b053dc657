"""The trainer's life: find the committed step, then roll out, train, save, refit, prove, record.

Every rank runs the same loop in step; rank 0 has the ``Recorder``.
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from dcr import observe
from dcr.errors import IntegrityError
from dcr.model import AuditTable
from dcr_recipes.grpo.metrics import StepMetrics
from dcr_recipes.recorder import Recorder
from dcr_recipes.refitter import Figures, Position, Refitter
from dcr_recipes.summary import MetricsLog

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


class Training(Protocol):
    """One rank of the recipe: the policy, its optimizer, its history, and its checkpoints."""

    @property
    def history(self) -> list[StepMetrics]:
        """Metrics of every step so far, restored ones included."""
        ...

    def rollout_and_train(self, step: int, version: int) -> StepMetrics:
        """Make experience with ``version`` and take optimizer step ``step`` on it."""
        ...

    def save(self, version: int) -> None:
        """Write this rank's checkpoint durably, as the weights that ``version`` is about to have."""
        ...

    def require_not_ahead(self, position: Position) -> None:
        """Check that no checkpoint is of a version that ``position`` cannot have led to yet.

        Raises:
            IntegrityError: there is one: the record was lost.
        """
        ...

    def restore(self, position: Position) -> bool:
        """Install the checkpoint of ``position``, or an older one; true if it is that of ``position``.

        Raises:
            IntegrityError: there is none at all.
        """
        ...

    def prove(self, table: AuditTable, audit_key: str) -> None:
        """Check that the present weights serve what ``table`` was committed with.

        Raises:
            IntegrityError: they do not.
        """
        ...

    def gather(self) -> "Mapping[str, torch.Tensor]":
        """The whole policy as a dense refit would send it (a collective; only rank 0 needs the answer)."""
        ...


class Loop:
    """Runs a training to ``num_steps``, from wherever the run folder says it is.

    ``gathers``: whether each refit needs the dense candidate (dense refits and verification do).
    """

    def __init__(
        self,
        training: Training,
        refitter: Refitter,
        *,
        num_steps: int,
        gathers: bool,
        recorder: Recorder | None,
    ) -> None:
        self._training = training
        self._refitter = refitter
        self._num_steps = num_steps
        self._gathers = gathers
        self._recorder = recorder
        self._version = 0

    def run(self) -> None:
        """Train the steps that are missing, then summarize."""
        self._begin()
        for step in range(len(self._training.history) + 1, self._num_steps + 1):
            self._refitter.serve(self._version)
            metrics = self._training.rollout_and_train(step, self._version)
            with observe.stage("trainer.checkpoint", step=step, version=self._version + 1):
                self._training.save(self._version + 1)
            self._record(metrics, self._publish(step))
        weights = self._training.gather()
        if self._recorder is not None:
            self._recorder.finish(self._training.history, weights, self._version)

    def _begin(self) -> None:
        """Come to the committed step, whatever of it is already done (DESIGN P5, P13)."""
        with observe.stage("trainer.open"):
            position = self._refitter.open()
        self._training.require_not_ahead(position)
        self._version = position.version
        # The weights of step 0 follow from the seed: they need no checkpoint.
        matches = position.step == 0 or self._training.restore(position)
        if matches:
            self._prove()
            self._export(self._version)
        else:
            self._roll_back()
        self._complete_metrics()

    def _prove(self) -> None:
        """Weights that claim to be the committed ones are so bit by bit, or training stops (P5, P9)."""
        audit = self._refitter.audit()
        if audit is not None:
            self._training.prove(audit.table, audit.key)

    def _roll_back(self) -> None:
        """Only an older checkpoint is left: its weights become the next version, against v's baseline."""
        self._training.save(self._version + 1)
        self._publish(len(self._training.history))

    def _publish(self, step: int) -> Figures:
        start = time.perf_counter()
        self._export(self._version + 1)
        export_s = time.perf_counter() - start
        if self._recorder is not None:
            self._recorder.begin_refit(self._version)
        with observe.stage("trainer.refit", step=step, version=self._version + 1):
            figures = self._refitter.sync(step, self._version)
        self._version = figures.version
        if self._refitter.reads_export and figures.seconds is not None:
            figures = replace(figures, seconds=figures.seconds + export_s)
        return figures

    def _export(self, version: int) -> None:
        if not self._gathers:
            return
        with observe.stage("trainer.gather", version=version):
            weights = self._training.gather()
            if self._recorder is not None:
                self._recorder.export(weights, version)

    def _record(self, metrics: StepMetrics, figures: Figures) -> None:
        if self._recorder is not None:
            self._recorder.record(metrics, figures)

    def _complete_metrics(self) -> None:
        """Cut rows that the checkpoint does not know; add the one that a crash after its commit prevented."""
        if self._recorder is None:
            return
        history = self._training.history
        rows = MetricsLog(self._recorder.folder.metrics).cut(len(history))
        if self._recorder.details is not None:
            self._recorder.details.begin(len(rows))
        missing = history[len(rows) :]
        if len(missing) > 1:
            raise IntegrityError(
                f"{self._recorder.folder.metrics} has {len(rows)} rows, the checkpoint {len(history)} steps: "
                "put the file back from a copy, or begin another run"
            )
        for metrics in missing:
            self._recorder.record(metrics, self._refitter.last())
