"""Storage of an instance whose ranks live in the workers of an engine."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dcr.receiver.workers.ranks import RemoteRank, Workers
from dcr_recipes.runtime.dump import join_dumps, rank_file
from dcr_recipes.runtime.files import dense_tensors

DUMP = "dump"
"""A call of the run's own, see ``RankServer``'s ``further``."""


@dataclass(frozen=True, slots=True)
class Dump:
    """What every worker is asked for: see ``Storage.dump``. Each answers how many bytes it wrote."""

    path: str
    share: float
    sample: str


class RanksStorage:
    """Implements ``Storage`` over the workers of one engine; ``dump`` has each of them write its part."""

    def __init__(self, workers: Workers, dump: Callable[[Dump], object]) -> None:
        self._dump = dump
        self._ranks = [RemoteRank(workers, greeting.rank) for greeting in workers.greetings]
        self._pool = ThreadPoolExecutor(len(self._ranks), "storage")

    def dump(self, path: Path, share: float, sample: str) -> int:
        """See ``Storage.dump``; names of several ranks begin with ``rank-<rank>/``."""
        self._dump(Dump(str(path), share, sample))
        parts = {f"rank-{rank}": rank_file(path, rank) for rank in range(len(self._ranks))}
        num_bytes = join_dumps(path, parts)
        for part in parts.values():
            part.unlink()
        return num_bytes

    def load(self, path: Path) -> None:
        """See ``Storage.load``."""
        for _ in dense_tensors(path):  # a broken file is found here, before a weight is touched
            break
        list(self._pool.map(lambda rank: rank.load_dense(path), self._ranks))
