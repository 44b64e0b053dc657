"""The trainer's life: find the committed step, then roll out, train, save, refit, prove, record.

Every rank runs the same loop in step; rank 0 has the ``Recorder``.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from dcr import observe
from dcr.errors import IntegrityError
from dcr.model import AuditTable
from dcr_recipes.details import StepDetails
from dcr_recipes.grpo.metrics import StepMetrics, run_token_digest, weights_digest
from dcr_recipes.layout import RunFolder
from dcr_recipes.mixed import Probers, Verifiers
from dcr_recipes.probe import Prober
from dcr_recipes.summary import MetricsLog, Row, summarize, write_summary
from dcr_recipes.verify import Difference, Verifier, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

_KEPT_DENSE = 2
"""The candidate itself, and its predecessor, against which a dense refit counts changes."""


@dataclass(frozen=True, slots=True)
class Position:
    """What the runtimes serve: ``version`` holds the weights after training step ``step``."""

    version: int
    step: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One refit. ``seconds`` and ``num_attempts`` are None if a crash kept them from being reported.

    ``manifest`` names the list of its payloads in the archive; empty for a dense refit. ``left_out`` are
    the instances that it was committed without (P11). ``pause_s``: for how many seconds the gate was shut of
    the instance that was shut longest, None if that is not known.
    """

    version: int
    num_changed: int
    num_elements: int
    payload_bytes: int
    dense_bytes: int
    seconds: float | None
    num_attempts: int | None
    manifest: str = ""
    left_out: tuple[str, ...] = ()
    pause_s: float | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """Digests of the committed version's tensors, and the key that they were made with (DESIGN B6)."""

    table: AuditTable
    key: str


class Refitter(Protocol):
    """How a candidate becomes the served version. Every rank calls every method, in the same order.

    ``reads_export``: it moves the gathered candidate, whose making is then part of the refit's time.
    """

    @property
    def reads_export(self) -> bool:
        """See the class."""
        ...

    def open(self) -> Position:
        """Create the run with the present weights, those of step 0, or find what is committed."""
        ...

    def serve(self, version: int) -> None:
        """Have the committed ``version``, whose weights are present now, served; asked before each step."""
        ...

    def sync(self, step: int, parent: int) -> Figures:
        """Publish the present weights, those of ``step``, as version ``parent`` + 1; then it is served."""
        ...

    def audit(self) -> Audit | None:
        """What the committed version's weights must digest to; None if this way of refitting keeps none."""
        ...

    def last(self) -> Figures:
        """Figures of the committed version, as far as they are still known."""
        ...


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


@dataclass(frozen=True, slots=True)
class Recorder:
    """Rank 0's files: metrics, dense candidates, summary; and the proof. ``verifier`` None: verify=off.

    ``details`` adds columns to the rows; ``prober`` compares what the instances answer.
    """

    folder: RunFolder
    verifier: Verifier | Verifiers | None
    details: StepDetails | None = None
    prober: Prober | Probers | None = None

    def begin_refit(self, version: int) -> None:
        """A refit of the served ``version`` is about to begin."""
        if self.prober is not None:
            with observe.stage("trainer.probe", version=version):
                self.prober.before(version)
        if self.details is not None:
            self.details.start()

    def record(self, metrics: StepMetrics, figures: Figures) -> None:
        """Prove the refit and append the step's row.

        Raises:
            VerificationError: bits differ; the row is written all the same.
            IntegrityError: instances answer differently, or from stale state.
        """
        row = step_row(metrics, figures)
        if figures.left_out:
            row["refit/left_out"] = ", ".join(figures.left_out)
        if self.details is not None:
            timed = figures.seconds is not None
            row |= self.details.columns(metrics.step, figures.version, figures.manifest, timed=timed)
        found = self._verify(row, metrics.step, figures.version)
        if self.prober is not None and not found:
            with observe.stage("trainer.probe", step=metrics.step, version=figures.version):
                row |= self.prober.after(figures.version)
        MetricsLog(self.folder.metrics).append(row)
        refuse(found, figures.version)

    def _verify(self, row: Row, step: int, version: int) -> list[Difference]:
        if self.verifier is None:
            return []
        with observe.stage("trainer.verify", step=step, version=version):
            found = self.verifier.verify(dense_path(self.folder, version), version)
        row["verify/share"] = self.verifier.share
        row["verify/differing_bits"] = sum(difference.num_bits for difference in found)
        return found

    def export(self, weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Write the gathered candidate; older ones are removed."""
        from dcr_recipes.grpo.stream import write_safetensors

        path = dense_path(self.folder, version)
        staged = path.with_suffix(".tmp")
        write_safetensors(staged, weights, {"format": "pt"}, durably=False)  # the checkpoint is what survives
        staged.replace(path)
        for old in sorted(self.folder.dense.glob("*.safetensors"))[:-_KEPT_DENSE]:
            old.unlink()

    def finish(self, history: list[StepMetrics], weights: "Mapping[str, torch.Tensor]", version: int) -> None:
        """Write the summary."""
        made = summarize(
            MetricsLog(self.folder.metrics).rows(),
            final_version=version,
            weights_digest=weights_digest(weights),
            token_digest=run_token_digest(history),
        )
        write_summary(self.folder.summary, made)


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
                f"{self._recorder.folder.metrics} has {len(rows)} rows, the checkpoint {len(history)} steps"
            )
        for metrics in missing:
            self._recorder.record(metrics, self._refitter.last())


def step_row(metrics: StepMetrics, figures: Figures) -> Row:
    """One line of ``metrics.jsonl``. ``version`` is the one that the step made, not the one it used."""
    return {
        "step": metrics.step,
        "version": figures.version,
        "reward/mean": metrics.reward_mean,
        "reward/std": metrics.reward_std,
        "train/loss": metrics.loss,
        "train/gen_kl_error": metrics.gen_kl_error,
        "train/clip_fraction": metrics.clip_fraction,
        "train/grad_norm": metrics.grad_norm,
        "rollout/version": metrics.version,
        "rollout/num_tokens": metrics.num_tokens,
        "rollout/token_digest": metrics.token_digest,
        "refit/changed_fraction": figures.num_changed / max(figures.num_elements, 1),
        "refit/payload_bytes": figures.payload_bytes,
        "refit/dense_bytes": figures.dense_bytes,
        "refit/seconds": figures.seconds,
        "refit/pause_s": figures.pause_s,
        "refit/attempts": figures.num_attempts,
    }


def dense_path(folder: RunFolder, version: int) -> Path:
    """File of the gathered candidate of ``version``."""
    return folder.dense / f"version-{version:08d}.safetensors"
