"""Rank 0's files of a run: step rows, dense candidates, the summary; and the proof of each refit."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dcr import observe
from dcr_recipes.details import StepDetails
from dcr_recipes.grpo.metrics import StepMetrics, run_token_digest, weights_digest
from dcr_recipes.layout import RunFolder
from dcr_recipes.mixed import Probers, Verifiers
from dcr_recipes.probe import Prober
from dcr_recipes.refitter import Figures
from dcr_recipes.summary import MetricsLog, Row, diverged, summarize, write_summary
from dcr_recipes.verify import Difference, Verifier, refuse

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

logger = logging.getLogger(__name__)
_KEPT_DENSE = 2
"""The candidate itself, and its predecessor, against which a dense refit counts changes."""


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
        self._append(row)
        refuse(found, figures.version)

    def _append(self, row: Row) -> None:
        """Write the row; the first that tells of a diverged training is logged, too."""
        log = MetricsLog(self.folder.metrics)
        if (words := diverged(row)) and not any(map(diverged, log.rows())):
            logger.warning(words)
        log.append(row)

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
