"""Real Megatron ranks refitted with residual tensors, through ``Refit`` and torch.distributed (R5, R3)."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tests.lanes.shared.trainer_world import CONFIG, committed, coordinated

from dcr import observe
from dcr.refit import Refit, Site
from dcr.source.exchange_torch import TorchExchange
from dcr_adapters.megatron import MegatronShards


class ResidualRefit:
    """One rank's refit in ``folder``. ``replayed`` counts payloads from which its trackers were rebuilt."""

    def __init__(
        self, bridge: Any, chunks: Sequence[torch.nn.Module], folder: Path, site: Site, *, classification: str
    ) -> None:
        self._bridge, self._chunks = bridge, chunks
        self._folder, self._site = folder, site
        self._classification = classification
        self.replayed = 0
        self._open(resume=False)

    def _open(self, *, resume: bool) -> None:
        source = MegatronShards(
            self._bridge, self._chunks, classification=self._classification, accept_residual=True
        )
        rank = dist.get_rank()
        trackers = self._folder / f"trackers-{rank}"
        self._refit = Refit.compose(
            CONFIG, self._site, source=source, rank=rank, trackers=trackers, exchange=TorchExchange()
        )
        with observe.listening(self._count):
            self._refit.open(resume=resume)

    def _count(self, event: observe.Event) -> None:
        self.replayed += event.name == "replay.payload"

    def sync(self, step: int) -> int:
        """Publish; rank 0 keeps what the archive makes of the version. Returns the changed elements."""
        report = self._refit.sync(step)
        if dist.get_rank() == 0:
            found: dict[str, Any] = dict(committed(self._site, report.record))
            np.savez(self._folder / f"committed-{report.record.version}.npz", **found)
        return report.num_changed

    def restart(self, *, damaged: bool) -> None:
        """As another process would, from the trackers' folder; ``damaged``: rank 0's bits are lost."""
        self._refit.close()
        if damaged and dist.get_rank() == 0:
            held = np.memmap(self._folder / "trackers-0" / "trackers.bin", np.uint8, "r+")
            held[::64] ^= 1
            held.flush()
        dist.barrier()
        self._open(resume=True)

    def close(self) -> None:
        """Answer no more calls."""
        self._refit.close()


@contextmanager
def residual_refit(
    bridge: Any, chunks: Sequence[torch.nn.Module], folder: Path, *, classification: str
) -> Iterator[ResidualRefit]:
    """The present weights are version 0 of a run of its own."""
    with coordinated(folder) as site:
        made = ResidualRefit(bridge, chunks, folder, site, classification=classification)
        yield made
        made.close()
