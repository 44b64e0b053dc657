"""``refit=dcr``: the trainer's loop on top of ``dcr.Refit``."""

from dataclasses import dataclass

from dcr.refit import Refit, SyncReport
from dcr_recipes.loop import Figures, Position


@dataclass(frozen=True, slots=True)
class DeltaRefitter:
    """One rank's refit. ``resume``: whatever run the run folder holds is ours to take over."""

    refit: Refit
    resume: bool

    def open(self) -> Position:
        """Join the run; all ranks get rank 0's answer, which no transition can overtake any more."""
        import torch
        import torch.distributed as dist

        record = self.refit.open(resume=self.resume)
        position = torch.tensor([record.version, record.step])
        dist.broadcast(position, src=0)
        return Position(*position.tolist())

    def serve(self, version: int) -> None:
        """Nothing to do: runtimes come to the committed version by themselves, and rollouts wait for them."""

    def sync(self, step: int, parent: int) -> Figures:
        """Publish the changed bits."""
        return _figures(self.refit.sync(step))

    def last(self) -> Figures:
        """Figures of the committed version, from the archive."""
        return _figures(self.refit.last())


def _figures(report: SyncReport) -> Figures:
    return Figures(
        version=report.record.version,
        num_changed=report.num_changed,
        num_elements=report.num_elements,
        payload_bytes=report.payload_bytes,
        dense_bytes=report.dense_bytes,
        seconds=report.seconds,
        num_attempts=report.num_attempts,
    )
