"""Messages between trainer ranks over torch.distributed (R5): inside the training cluster only."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist


class TorchExchange:
    """``dcr.source.residual.Exchange`` over a group of the default backend's CPU side (gloo).

    Raises:
        ValueError: torch.distributed is not initialized (from torch itself).
    """

    def __init__(self, group: "dist.ProcessGroup | None" = None) -> None:
        self._group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)

    def route(self, messages: Sequence[bytes]) -> list[bytes]:
        """See ``Exchange``: an all-to-all of the sizes, then one of the bytes."""
        sizes = torch.tensor([len(message) for message in messages], dtype=torch.int64)
        theirs = torch.zeros_like(sizes)
        dist.all_to_all_single(theirs, sizes, group=self._group)
        packed = torch.from_numpy(np.frombuffer(b"".join(messages), dtype=np.uint8).copy())
        received = torch.zeros(int(theirs.sum()), dtype=torch.uint8)
        dist.all_to_all_single(received, packed, theirs.tolist(), sizes.tolist(), group=self._group)
        ends = np.cumsum(theirs.numpy())[:-1]
        return [part.tobytes() for part in np.split(received.numpy(), ends)]
