"""A worker whose memory can be damaged on demand."""

import torch

from dcr.receiver.modules import resident_of
from dcr_adapters.vllm.worker import DcrWorkerExtension

EXTENSION = f"{__name__}.FlippingExtension"


class FlippingExtension(DcrWorkerExtension):
    """What DCR adds, and a call that flips one bit of one rank's resident storage."""

    def flip_bit(self, rank: int, resident: str, element: int) -> None:
        """Lowest bit of ``element`` of the 2-byte tensor ``resident``, on ``rank`` only."""
        if self.rank == rank:  # type: ignore[attr-defined]  # vLLM's worker
            model = self.model_runner.get_model()  # type: ignore[attr-defined]
            resident_of(model)[resident].data.view(torch.int16).reshape(-1)[element] ^= 1
