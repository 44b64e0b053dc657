"""Ranks with a forced method, and what learning the placement map costs (DESIGN B2)."""

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from dcr.model import Catalogue
from dcr.receiver.apply import RankApplier
from dcr.receiver.ports import NativeLoader
from dcr.receiver.prewarm import learn
from dcr.receiver.rank import Method
from dcr.receiver.storages import Storages

if TYPE_CHECKING:
    from dcr.receiver.scatter.engine import EngineName


@dataclass(frozen=True, slots=True)
class Learning:
    """Cost of one prewarm. ``us_per_tensor`` is CPU time of the learning passes.

    ``fingerprint_s`` is apart: hashing every resident byte before and after, to prove that nothing was
    written, follows the bytes of the model and not its tensors. ``learned_share`` is of bytes.
    """

    num_tensors: int
    us_per_tensor: float
    fingerprint_s: float
    map_bytes_per_tensor: float
    learned_share: float
    others: dict[str, str]

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def hooked(loader: NativeLoader, catalogue: Catalogue) -> RankApplier:
    """The paper's path: dense scratch through the loader, combined by the dispatch hook."""
    rank = RankApplier(loader, catalogue, method="hook")
    rank.prewarm()
    return rank


def learned(loader: NativeLoader, catalogue: Catalogue, engine: str) -> RankApplier:
    """Changes scattered through the map by ``engine``."""
    rank = RankApplier(loader, catalogue, engine=cast("EngineName", engine))
    rank.prewarm()
    return rank


def learning_of(loader: NativeLoader, catalogue: Catalogue) -> Learning:
    """Learn twice, timing the second time: the first compiles and imports."""
    rank = learned(loader, catalogue, "auto")
    start = time.thread_time()
    learn(loader, catalogue)
    seconds = time.thread_time() - start
    fingerprint_s = _fingerprint_s(loader)
    specs = catalogue.by_name()
    learned_bytes = sum(specs[name].num_bytes for name in rank.map.specs_of(Method.LEARNED))
    return Learning(
        num_tensors=len(specs),
        us_per_tensor=1e6 * (seconds - fingerprint_s) / len(specs),
        fingerprint_s=fingerprint_s,
        map_bytes_per_tensor=rank.map.placed.plan.num_bytes / len(specs),
        learned_share=learned_bytes / sum(spec.num_bytes for spec in specs.values()),
        others={
            name: f"{path.method.value}: {path.reason or path.refusal}"
            for name, path in rank.map.paths.items()
            if path.method is not Method.LEARNED
        },
    )


def _fingerprint_s(loader: NativeLoader) -> float:
    """CPU seconds of looking at all resident bytes, twice as ``learn`` does."""
    storages = Storages(loader.resident())
    start = time.thread_time()
    for _ in range(2):
        for number in range(len(storages)):
            storages.fingerprint(number)
    return time.thread_time() - start
