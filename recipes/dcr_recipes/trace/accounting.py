"""Refit latency and what bounds it from below (paper section 8.7, Figures 11 and C.5; DESIGN R21).

Of each committed transition: the timed window begins when the first owner starts to construct (t0) and ends
when the last owner has folded in (t1). Latency is t1 - t0 without the post-apply check. The construction
bound is the longest union of one owner's compute intervals, the transport bound that of one endpoint's:
owners send payloads, receivers fetch them where the transport is an object store. Finalization is what
follows the last application, the check left out again. Prepare precedes t0, cleanup and the gate's reopening
follow t1; residual tensors are converted before prepare, so a window that has them begins there and holds it.

Several receivers check beside one another: what is taken off is by how much the last of them would have
ended earlier, so that latency is never understated. All times are brought to one clock by each life's header
(``dcr_recipes.trace.merge``).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TypeAlias

from dcr_recipes.trace.files import Life
from dcr_recipes.trace.intervals import Interval, busiest_ns, saved_ns
from dcr_recipes.trace.merge import clock_offsets

ByParty: TypeAlias = dict[str, list[Interval]]

BOUNDS = "bounds/"
"""What the columns of ``metrics.jsonl`` that hold an accounting begin with."""
COMPUTE = frozenset({"owner.residual", "owner.compare", "owner.project", "owner.encode"})
"""Comparison, projection, residual conversion, encoding; ``owner.encode`` contains zstd."""
SENDS, FETCHES = "owner.send", "receiver.fetch"
APPLY = "receiver.apply"
CHECKS = frozenset({"receiver.check", "receiver.audit"})
_BEGINS = frozenset({"owner.construct", "owner.compare", "owner.residual"})
_FOLD_IN = "owner.fold_in"
_KEPT = COMPUTE | CHECKS | _BEGINS | {SENDS, FETCHES, APPLY, _FOLD_IN}


@dataclass(frozen=True, slots=True)
class Accounting:
    """One committed transition, all in seconds.

    ``upload_s`` and ``download_s`` are the busiest owner's sending and the busiest receiver's fetching,
    ``transport_s`` the longer one. ``rest_s`` is what latency exceeds the larger bound plus finalization by:
    start, drain and hand-overs between stages; negative where stages that these count overlap.
    """

    version: int
    latency_s: float
    construction_s: float
    upload_s: float
    download_s: float
    finalization_s: float
    check_s: float

    @property
    def transport_s(self) -> float:
        """The transport lower bound."""
        return max(self.upload_s, self.download_s)

    @property
    def rest_s(self) -> float:
        """See the class."""
        return self.latency_s - max(self.construction_s, self.transport_s) - self.finalization_s

    def columns(self) -> dict[str, float]:
        """Everything by name, without the version."""
        named = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "version"}
        return {**named, "transport_s": self.transport_s, "rest_s": self.rest_s}


@dataclass(frozen=True, slots=True)
class _Seen:
    """One kept stage on the common clock."""

    party: str
    name: str
    interval: Interval
    version: int | None = None


def account(lives: Sequence[Life]) -> list[Accounting]:
    """Every transition whose fold-in ``lives`` show, oldest first; the anchor (v0) has none."""
    seen = list(_on_one_clock(lives))
    folds: dict[int, list[_Seen]] = defaultdict(list)
    for each in seen:
        if each.name == _FOLD_IN and each.version is not None:
            folds[each.version].append(each)
    found, since = [], 0
    for version in sorted(folds):
        end = max(fold.interval.end for fold in folds[version])
        inside = [each for each in seen if since <= each.interval.start and each.interval.end <= end]
        made = _account(version, inside, folds[version], end)
        if made is not None:
            found.append(made)
        since = end
    return found


def _account(version: int, seen: Sequence[_Seen], folds: Sequence[_Seen], end: int) -> Accounting | None:
    """None where nothing was constructed in the time that is known: a fold-in after a restart."""
    work = [each for each in seen if not _is_part_of(each, folds)]
    start = min((each.interval.start for each in work if each.name in _BEGINS), default=None)
    if start is None:
        return None
    window = Interval(start, end)
    applied = [each.interval.end for each in work if each.name == APPLY]
    final = Interval(max(applied, default=start), end)
    checks = _by_party(work, CHECKS)
    check_ns = saved_ns(checks, window)
    return Accounting(
        version=version,
        latency_s=(end - start - check_ns) / 1e9,
        construction_s=busiest_ns(_by_party(work, COMPUTE), window) / 1e9,
        upload_s=busiest_ns(_by_party(work, {SENDS}), window) / 1e9,
        download_s=busiest_ns(_by_party(work, {FETCHES}), window) / 1e9,
        finalization_s=(final.end - final.start - saved_ns(checks, final)) / 1e9,
        check_s=check_ns / 1e9,
    )


def _is_part_of(each: _Seen, folds: Sequence[_Seen]) -> bool:
    """Whether it is a fold-in, or the comparison that belongs to one: no part of the construction."""
    return each.name == _FOLD_IN or any(
        fold.party == each.party and fold.interval.holds(each.interval) for fold in folds
    )


def _by_party(seen: Iterable[_Seen], names: Iterable[str]) -> Mapping[str, list[Interval]]:
    wanted, found = frozenset(names), ByParty()
    for each in seen:
        if each.name in wanted:
            found.setdefault(each.party, []).append(each.interval)
    return found


def _on_one_clock(lives: Sequence[Life]) -> Iterable[_Seen]:
    offsets = clock_offsets([life.header for life in lives])
    for life in lives:
        if not life.header.takes_part:
            continue
        offset = offsets[life.header]
        for span in life.spans:
            if span.name in _KEPT:
                interval = Interval(span.start_ns + offset, span.end_ns + offset)
                version = span.fields.get("version")
                yield _Seen(life.header.process, span.name, interval, _number(version))


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None
