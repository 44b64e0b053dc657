"""From traces of the loader to path classes and refusals (paper Table A.2, DESIGN R6, R11)."""

from bisect import bisect_left
from itertools import accumulate

import torch

from dcr.model import Catalogue, Classification, PathClass, TensorSpec
from dcr.receiver.geometry import Copy, Fill
from dcr.receiver.landing import Landing, boxes_of, cover_of
from dcr.receiver.learn_hook import Trace
from dcr.receiver.overlap import Overlaps, Write, find_overlaps
from dcr.receiver.placement import PlacementTable
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import Method, RankPath
from dcr.receiver.storages import Storages


def classify(
    loader: NativeLoader, catalogue: Catalogue, traces: dict[str, Trace], *, streamable: bool
) -> PlacementTable:
    """Decide what each canonical tensor accepts; ``traces`` has every name, aliases included.

    XOR only if every copy keeps the representation, repeats no element and shares no byte with
    another write. Tied names are classified, and sent, each on their own.
    """
    overlaps = find_overlaps(_writes(catalogue, traces))
    specs = catalogue.by_name()
    refusals: dict[str, str] = {}
    classes: Classification = {}
    for name, trace in traces.items():
        reason = _refusal(specs[name], trace, skips=loader.skips(name)) or overlaps.conflicts.get(name, "")
        if reason:
            refusals[name] = reason
            classes[name] = PathClass.REFUSED
        else:
            classes[name] = _path_class(name, trace, overlaps)
    refusals.update(_unreached(loader.resident(), traces))
    copies = {name: tuple(trace.copies) for name, trace in traces.items()}
    storages = Storages(loader.resident())
    landings = {name: _landings(made, storages) for name, made in copies.items()}
    paths = {
        name: RankPath(
            classes[name],
            Method.LEARNED if copies[name] else Method.NONE,
            refusal=refusals.get(name, ""),
            skipped=loader.skips(name),
            cover=cover_of(landings[name]),
        )
        for name in traces
    }
    return PlacementTable(catalogue, storages, paths, landings, copies, {}, (), streamable, refusals)


def _landings(copies: tuple[Copy, ...], storages: Storages) -> tuple[Landing, ...]:
    found: list[Landing] = []
    for copy in copies:
        number = storages.find(copy.target)
        assert number is not None
        offset = (copy.address - storages[number].address) // copy.dtype.itemsize
        source = (copy.source_offset, copy.source_strides)
        boxes = boxes_of(copy.shape, source, (offset, copy.strides))
        found += [Landing(number, box, copy.dtype, copy.preserving, copy.scalar) for box in boxes]
    return tuple(found)


def _writes(catalogue: Catalogue, traces: dict[str, Trace]) -> list[Write]:
    roots = {n: i for i, spec in enumerate(catalogue.tensors) for n in (spec.name, *spec.aliases)}
    writes: list[Write] = []
    for name, trace in traces.items():
        writes += [Write(name, roots[name], copy) for copy in trace.copies]
        writes += [Write(name, roots[name], fill) for fill in trace.fills]
    return writes


def _refusal(spec: TensorSpec, trace: Trace, *, skips: bool) -> str:
    if skips:
        return "skips() says it is placed nowhere, but the loader copies it" if trace.copies else ""
    if trace.refusal:
        return trace.refusal
    if spec.num_elements == 0:
        return ""
    if not trace.copies:
        return "the loader copies nothing of it and skips() does not say that this is on purpose"
    for copy in trace.copies:
        if (
            copy.source_dtype != trace.copies[0].source_dtype
            or str(copy.source_dtype) != f"torch.{spec.dtype}"
        ):
            return f"the loader reads it as {copy.source_dtype}, not as {spec.dtype}"
    covered = torch.zeros(spec.num_elements, dtype=torch.bool)
    for copy in trace.copies:
        copy.source(covered)[copy.once] = True
    missing = int((~covered).sum())
    return f"{missing} of its {spec.num_elements} elements reach no destination" if missing else ""


def _path_class(name: str, trace: Trace, overlaps: Overlaps) -> PathClass:
    if not trace.copies:  # a skipped name; the loader may even have refused to take it
        return PathClass.SKIP
    plain = all(copy.preserving and not copy.broadcast for copy in trace.copies)
    return PathClass.XOR if plain and name not in overlaps.shared else PathClass.OVERWRITE


def _unreached(resident: dict[str, torch.Tensor], traces: dict[str, Trace]) -> dict[str, str]:
    """Parameters into whose storage bytes no canonical tensor is copied."""
    reached = sorted(copy.extent for trace in traces.values() for copy in trace.copies)
    starts = [start for start, _ in reached]
    ends = list(accumulate((end for _, end in reached), max))
    missing = {}
    for name, tensor in resident.items():
        if isinstance(tensor, torch.nn.Parameter) and tensor.numel():
            start, stop = Fill(name, tensor.detach()).extent
            before = bisect_left(starts, stop)
            if before == 0 or ends[before - 1] <= start:
                missing[name] = "no canonical tensor reaches this parameter"
    return missing
