"""How long each stage of a transition took: the columns ``refit/<stage>_s`` of ``metrics.jsonl``.

Beside them, as ``bounds/<name>_s``, latency and lower bounds as the paper accounts for them.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from dcr.observe import ANCHOR
from dcr_recipes.trace.accounting import Accounting, account
from dcr_recipes.trace.files import Life, Span, Tail

STAGES: Mapping[str, str] = {
    "compare": "owner.compare",
    "project": "owner.project",
    "encode": "owner.encode",
    "compress": "owner.compress",
    "send": "owner.send",
    "decode": "receiver.decode",
    "apply": "receiver.apply",
    "check": "receiver.check",
    "audit": "receiver.audit",
    "commit": "coordinator.commit",
    "fold_in": "owner.fold_in",
    "anchor": ANCHOR,
    "restore": "receiver.restore",
    "load": "runtime.load_dense",
}
"""Column -> stage. ``audit`` is of all resident bits; ``load`` is a dense refit, ``restore`` a recovery.

What a process does while it writes an ``anchor`` counts for nothing else.
"""

_WITHOUT = {"owner.encode": "owner.compress"}
"""Stages that are counted without another one that runs inside them."""
_FOLD_IN = "owner.fold_in"
_COUNTED_APART = ("owner.compare", "owner.project")
"""A fold-in compares once more; that is part of the fold-in."""


def stage_seconds(lives: Sequence[Life]) -> dict[str, float]:
    """Seconds of every column: each process's spans summed, then the largest of all processes."""
    totals: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for life in lives:
        if life.header.takes_part:
            for name, num_ns in _totals(life.spans).items():
                totals[name][life.header.process] += num_ns
    return {
        column: max(totals[name].values(), default=0) / 1e9 if name in totals else 0.0
        for column, name in STAGES.items()
    }


def _totals(spans: Sequence[Span]) -> dict[str, int]:
    folds = [span for span in spans if span.name == _FOLD_IN]
    anchors = [span for span in spans if span.name == ANCHOR]
    totals: dict[str, int] = defaultdict(int)
    for span in spans:
        if span.name in _COUNTED_APART and any(_inside(span, fold) for fold in folds):
            continue
        if span.name != ANCHOR and any(_during(span, anchor) for anchor in anchors):
            continue
        totals[span.name] += span.end_ns - span.start_ns
    for outer, inner in _WITHOUT.items():
        totals[outer] = max(0, totals[outer] - totals[inner])
    return totals


def _inside(span: Span, outer: Span) -> bool:
    return span.thread == outer.thread and _during(span, outer)


def _during(span: Span, outer: Span) -> bool:
    return outer.start_ns <= span.start_ns and span.end_ns <= outer.end_ns


class StageClock:
    """Reads the processes' files as they grow; what came before it was made does not count."""

    def __init__(self, folder: Path) -> None:
        self._tail = Tail(folder)
        self._lives = self._tail.take()

    def take(self) -> dict[str, float]:
        """Seconds by column since it was last asked; call it when a transition has ended everywhere."""
        self._lives = self._tail.take()
        return stage_seconds(self._lives)

    def accounting(self, version: int) -> Accounting | None:
        """Latency and bounds of the transition to ``version``; None if what was taken last is not of it."""
        return next((found for found in account(self._lives) if found.version == version), None)
