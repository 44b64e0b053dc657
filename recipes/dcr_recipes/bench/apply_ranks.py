"""Ranks with a forced method, and what learning the placement map costs (DESIGN B2)."""

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from dcr import observe
from dcr.model import Catalogue
from dcr.receiver.apply import RankApplier
from dcr.receiver.ports import NativeLoader
from dcr.receiver.prewarm import learn
from dcr.receiver.rank import Method

if TYPE_CHECKING:
    from dcr.receiver.scatter.engine import EngineName


_ROUNDS = 11


@dataclass(frozen=True, slots=True)
class Learning:
    """Cost of one prewarm. ``us_per_tensor`` is CPU time of the learning passes, the least of all rounds.

    CPU time of Python code nearly doubles while another guest of the host keeps the same core busy, so the
    median (``median_us_per_tensor``) says as much of the neighbours as of learning. ``fingerprint_s`` is
    apart: hashing every resident byte before and after, to prove that nothing was written, follows the bytes
    of the model and not its tensors. ``learned_share`` is of bytes.
    """

    num_tensors: int
    us_per_tensor: float
    median_us_per_tensor: float
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
    """Learn again and again, timing all but the first: that one compiles and imports."""
    rank = learned(loader, catalogue, "auto")
    costs = sorted(_cost(loader, catalogue) for _ in range(_ROUNDS))
    (least, _), (median, fingerprint_s) = costs[0], costs[len(costs) // 2]
    specs = catalogue.by_name()
    learned_bytes = sum(specs[name].num_bytes for name in rank.map.specs_of(Method.LEARNED))
    return Learning(
        num_tensors=len(specs),
        us_per_tensor=1e6 * least / len(specs),
        median_us_per_tensor=1e6 * median / len(specs),
        fingerprint_s=fingerprint_s,
        map_bytes_per_tensor=rank.map.placed.plan.num_bytes / len(specs),
        learned_share=learned_bytes / sum(spec.num_bytes for spec in specs.values()),
        others={
            name: f"{path.method.value}: {path.reason or path.refusal}"
            for name, path in rank.map.paths.items()
            if path.method is not Method.LEARNED
        },
    )


def _cost(loader: NativeLoader, catalogue: Catalogue) -> tuple[float, float]:
    """CPU seconds of learning once, and apart from it of looking at all resident bytes, before and after."""
    hashing: list[int] = []

    def note(event: observe.Event) -> None:
        if event.name == "receiver.fingerprint":
            hashing.append(event.cpu_ns)

    with observe.listening(note):
        start = time.thread_time_ns()
        learn(loader, catalogue)
        spent = time.thread_time_ns() - start
    return (spent - sum(hashing)) / 1e9, sum(hashing) / 1e9
