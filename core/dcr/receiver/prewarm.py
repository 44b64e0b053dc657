"""Suppressed passes of the native loader over the catalogue (paper section 6.1, DESIGN R11, P15, B2).

Nothing resident changes. Two streamed passes must agree: one over scratch without contents, and one over
zeros on the host, because a loader may ask what it is given. Tensors whose values the loader looks at,
those that it treats otherwise on the host, and those for which it needs contents are fed again with three
different contents, and then once more among all others: what a loader does with a tensor may depend on
which come along. Afterwards every canonical tensor has a method and a path class, or a reason why it is
refused.
"""

import gc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from dcr import observe
from dcr.errors import UnsupportedPath
from dcr.model import Catalogue, PathClass
from dcr.receiver.alone import DEPENDS, unlike_alone
from dcr.receiver.classify import classify
from dcr.receiver.learn_pass import Fitting, Learner, PassResult, Scratch, full_of, hollow
from dcr.receiver.placement import PlacementTable
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import Method, RankPath
from dcr.receiver.storages import Storages
from dcr.receiver.trace import Kind, Trace, Traces

_CONTENTS: tuple[Scratch, ...] = (full_of(0.0), full_of(3.0), full_of(-5.0, 0.5))
"""What is written past the hook stays, in storage that was zero, too: the last one has no zeros."""


def learn(loader: NativeLoader, catalogue: Catalogue, *, keep_copies: bool = False) -> PlacementTable:
    """Learn where ``loader`` puts the tensors of ``catalogue``, with every resident bit as it was before.

    ``keep_copies``: the table also has what the dispatch hook expects of tensors that are LEARNED.
    The table may hold refusals; ``dcr.receiver.join`` raises them.

    Raises:
        UnsupportedPath: the loader replaced storage for good, or wrote it where no hook can see. What
            is resident must then be restored.
    """
    with _collector_off():
        return _learn_table(loader, catalogue, keep_copies=keep_copies)


@contextmanager
def _collector_off() -> Iterator[None]:
    """Learning makes many small objects that live on: the garbage collector looks through them in vain.

    It costs a fifth of the time at 20,000 tensors.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _learn_table(loader: NativeLoader, catalogue: Catalogue, *, keep_copies: bool) -> PlacementTable:
    specs = catalogue.by_name()
    storages = Storages(loader.resident())
    if known_refusals := loader.refusals():  # a loader of a kind that nobody knows may do anything
        return _not_learned(catalogue, storages, known_refusals)
    before = _fingerprints(storages)
    learner = Learner(loader, specs, storages)
    fitting = Fitting(specs.values())
    traces, streamable = _learn(loader, learner, list(specs), fitting)
    table = classify(
        loader, catalogue, storages, traces=traces, streamable=streamable, keep_copies=keep_copies
    )
    refusals = unlike_alone(table, traces, lambda names: learner.stream(names, fitting))
    for number, (known, found) in enumerate(zip(before, _fingerprints(storages), strict=True)):
        if found != known:
            raise UnsupportedPath(
                f"the loader wrote resident {storages[number].name!r} past the dispatch hook (a custom "
                "kernel or numpy); use dense refits, or a loader that copies with torch operations"
            )
    return _refusing(table, refusals)


def _not_learned(catalogue: Catalogue, storages: Storages, refusals: dict[str, str]) -> PlacementTable:
    """What the loader refuses in advance, and nothing else: it was not asked to load anything."""
    unknown = RankPath(PathClass.SKIP, Method.NONE, "not learned: the loader takes no deltas", skipped=True)
    paths = dict.fromkeys(catalogue.by_name(), unknown)
    table = PlacementTable(catalogue, storages, paths, {}, {}, {}, (), True, refusals)
    return _refusing(table, {name: why for name, why in refusals.items() if name in paths})


def _fingerprints(storages: Storages) -> list[int]:
    """Of every resident byte: the cost follows the bytes of the model, all else its tensors."""
    with observe.span("receiver.fingerprint"):
        return [storages.fingerprint(number) for number in range(len(storages))]


def _learn(loader: NativeLoader, learner: Learner, names: list[str], fitting: Fitting) -> tuple[Traces, bool]:
    """Traces, and whether all passes were streamed; ``fitting`` is told of names that need contents."""
    first = learner.stream(names, hollow)
    traces = first.traces
    fine = [name for name in names if not traces[name].error]
    second = learner.stream(fine, fitting.blank)
    _require_same(traces[""], second.traces[""])
    passes = [first, second]
    again = {n for n in names if traces[n].reads_values or (traces[n].error and not loader.skips(n))}
    again |= {name for name in fine if second.traces[name].reads_values}
    unlike = [n for n in fine if n not in again and not _same(traces[n], second.traces[n])]
    if again or unlike:
        again.update(unlike)
        passes += _with_contents(learner, [name for name in names if name in again], traces, fitting)
        passes.append(
            _among_all(learner, [name for name in names if not traces[name].error], fitting, traces)
        )
    for name in unlike:
        _require_host(traces[name], second.traces[name])
    return traces, all(result.streamed for result in passes)


def _with_contents(
    learner: Learner, names: Sequence[str], traces: Traces, fitting: Fitting
) -> list[PassResult]:
    """Replace the traces of ``names`` by what the loader does with real contents."""
    passes = [learner.stream(names, contents) for contents in _CONTENTS]
    failed = [name for name in names if all(result.traces[name].error for result in passes)]
    if failed:  # a clone that keeps the scratch's geometry may be what it cannot take
        for contents, result in zip(_CONTENTS, passes, strict=True):
            result.traces.update(learner.singly(failed, contents, twins=False).traces)
    for name in names:
        tries = [result.traces[name] for result in passes]
        for contents, trace in zip(_CONTENTS, tries, strict=True):
            if not trace.error:
                fitting.contents[name] = contents
        hollow = traces[name]
        traces[name] = _agreed(tries)
        if hollow.error and not hollow.reads_values:  # contents left torch (tolist, numpy) where no hook sees
            traces[name].takes_numbers = True
    return passes


def _refusing(table: PlacementTable, refusals: dict[str, str]) -> PlacementTable:
    if not refusals:
        return table
    refused = {n: RankPath(PathClass.REFUSED, Method.NONE, refusal=why) for n, why in refusals.items()}
    return replace(table, paths={**table.paths, **refused}, refusals={**table.refusals, **refusals})


def _among_all(learner: Learner, names: Sequence[str], scratch: Scratch, traces: Traces) -> PassResult:
    """One stream of all that the loader takes, uncut: refuse what it does otherwise there."""
    result = learner.stream(names, scratch)
    for name in names:
        known, found = traces[name], result.traces[name]
        if found.error:
            known.refuse(f"the loader takes it on its own, but not among all tensors: {found.error}")
        elif not known.undecided and not _same(known, found):
            known.refuse(DEPENDS)
    return result


def _agreed(tries: list[Trace]) -> Trace:
    """One trace of several with different contents; some contents the loader may refuse."""
    taken = [trace for trace in tries if not trace.error]
    if not taken:
        return tries[0]
    kept = taken[0]
    if len(taken) > 1 and all(_same(kept, other) for other in taken[1:]):
        return kept
    if any(_targets(kept) != _targets(other) for other in taken[1:]):
        kept.refuse("the loader decides by the values that it is given where it stores them")
    kept.undecided = "the loader decides by the values that it is given"
    # what looked like a constant was made of values that left torch
    kept.writes = [write._replace(kind=Kind.COMPUTED, source=None) for write in kept.writes]
    kept.expected.clear()
    return kept


def _require_same(first: Trace, second: Trace) -> None:
    if not _same(first, second):
        first.refuse("what it does beside the tensors differs between two learning passes")


def _require_host(agreed: Trace, second: Trace) -> None:
    """Passes with contents must repeat what the second one saw: else it was not for the contents' sake."""
    if agreed.undecided or not (second.error or _same(agreed, second)):
        agreed.undecided = ""
        agreed.refusal = "its copies differ between two learning passes over equal tensors"


def _same(one: Trace, two: Trace) -> bool:
    """Whether both write the same, in whatever order."""
    if one.refusal != two.refusal or one.reads != two.reads or one.reads_values != two.reads_values:
        return False
    return one.writes == two.writes or Counter(one.writes) == Counter(two.writes)


def _targets(trace: Trace) -> Counter[tuple[object, ...]]:
    return Counter(tuple(write[1:6]) for write in trace.writes)
