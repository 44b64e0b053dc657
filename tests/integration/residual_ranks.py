"""Three trainer ranks whose tensors need one another: a shared scale, overlapping parts (R5, R3).

usage: python -m tests.integration.residual_ranks FOLDER; writes ``told-<rank>.json`` and ``version-<n>.npz``.
"""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from tests.integration.quantized import Other, Quantized
from tests.lanes.shared.trainer_world import CONFIG, committed, coordinated, fork_ranks

from dcr import observe
from dcr.errors import RefitError
from dcr.indexmap import IndexMap
from dcr.refit import Refit, Site
from dcr.source.exchange_torch import TorchExchange

WORLD = 3


def quantized(rank: int) -> Quantized:
    """At first rows of 1 + rank; parts of the border overlap by one element."""
    border = Other("edge", "border", IndexMap.contiguous(2, rank, WORLD + 1), "parts overlap")
    made = Quantized(rank, WORLD, largest, border)
    made.rows += 1.0 + rank
    made.other += np.arange(rank, rank + 2, dtype=np.float32)
    return made


def largest(own: float) -> float:
    found = torch.tensor([own])
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found)


class Rank:
    """One rank's story: what was told of every step, by its name."""

    def __init__(self, folder: Path, site: Site, rank: int) -> None:
        self.folder, self.site, self.source = folder, site, quantized(rank)
        self.told: dict[str, Any] = {}
        self.refit = self._composed()

    def _composed(self) -> Refit:
        trackers = self.folder / f"rank-{self.source.rank}"
        exchange = TorchExchange()
        return Refit.compose(
            CONFIG,
            self.site,
            source=self.source,
            rank=self.source.rank,
            trackers=trackers,
            exchange=exchange,
        )

    def open(self, *, resume: bool) -> None:
        with heard("replay.payload") as replayed:
            self.refit.open(resume=resume)
        self.told[f"replayed at {self.refit.record.version}"] = len(replayed)

    def restart(self) -> None:
        """As another process would: nothing but the trackers' folder is left."""
        self.refit.close()
        dist.barrier()
        self.refit = self._composed()
        self.open(resume=True)

    def sync(self, step: int, name: str) -> None:
        try:
            report = self.refit.sync(step)
        except RefitError as err:
            self.told[name] = f"{type(err).__name__}: {err}"
            return
        self.told[name] = [report.record.version, report.num_changed]
        if self.source.rank == 0:
            found = committed(self.site, report.record)
            arrays: dict[str, Any] = dict(found)
            np.savez(self.folder / f"version-{report.record.version}.npz", **arrays)
        np.savez(
            self.folder / f"raw-{report.record.version}-{self.source.rank}.npz",
            rows=self.source.rows,
            border=self.source.other,
        )


@contextmanager
def heard(name: str) -> Iterator[list[str]]:
    """Spans of that name in this process."""
    found: list[str] = []

    def listen(event: observe.Event) -> None:
        if event.name == name:
            found.append(name)

    with observe.listening(listen):
        yield found


def undigested(source: Quantized) -> Any:
    """Inside, there is no room to digest what ``source`` reads."""
    return patch.object(source, "input_digests", side_effect=MemoryError("host copy"))


def story(folder: Path, rank: int) -> None:
    """Every step is taken by all ranks together."""
    with coordinated(folder) as site:
        one = Rank(folder, site, rank)
        source = one.source
        one.open(resume=False)
        if rank == 0:
            source.rows[0, 0] = 6.0  # the others' rows stay, but the scale that they share doubles
        one.sync(1, "scale")
        one.sync(2, "nothing")
        source.other += np.float32(1.0) if rank == 1 else np.float32(0.0)
        one.sync(3, "disagree")
        source.other[:] = np.arange(rank, rank + 2) * 2
        one.sync(3, "agree")
        with undigested(source) if rank == 1 else nullcontext():
            one.sync(4, "undigested")
        source.rows += 1.0
        source.spoil = lambda part: None if (rank, part.name) == (2, "weight.quantized") else part
        one.sync(4, "missing")
        source.spoil = lambda part: part
        one.sync(4, "complete")
        one.restart()
        source.rows *= 3.0
        one.sync(5, "after a restart")
        one.refit.close()
        dist.barrier()
        if rank == 1:
            spoil_trackers(folder / "rank-1" / "trackers.bin")
        one.restart()
        source.rows -= 0.5
        one.sync(6, "after damage")
        one.refit.close()
    (folder / f"told-{rank}.json").write_text(json.dumps(one.told))


def spoil_trackers(path: Path) -> None:
    """Another bit in every tracker."""
    bits = np.memmap(path, np.uint8, "r+")
    bits[:] ^= 1
    bits.flush()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    torch.set_num_threads(1)
    fork_ranks(where, WORLD, lambda rank: story(where, rank))
