"""From traces of the loader to methods, path classes and refusals (paper Table A.2, DESIGN R6, R11, B2)."""

from dataclasses import dataclass

from dcr.errors import ConfigError
from dcr.indexmap import Box
from dcr.model import Catalogue, PathClass, TensorSpec, width_bytes
from dcr.receiver.derive import Links, find_links
from dcr.receiver.geometry import Copy, copy_of
from dcr.receiver.landing import Constant, Landing, cover_of, cover_of_source, landings_of, targets_of
from dcr.receiver.lanes import torch_dtype
from dcr.receiver.overlap import Overlaps, Region, find_overlaps
from dcr.receiver.placement import PlacementTable
from dcr.receiver.ports import NativeLoader
from dcr.receiver.rank import Cover, Method, RankPath
from dcr.receiver.storages import Storages
from dcr.receiver.trace import Kind, Trace, Traces, Write
from dcr.receiver.unreached import unreached


@dataclass(slots=True)
class _Found:
    """What one tensor's trace amounts to; ``unmapped`` says why its copies are no landings."""

    landings: tuple[Landing, ...] = ()
    regions: tuple[Region, ...] = ()
    unmapped: str = ""


def classify(
    loader: NativeLoader,
    catalogue: Catalogue,
    storages: Storages,
    *,
    traces: Traces,
    streamable: bool,
    keep_copies: bool,
) -> PlacementTable:
    """Decide how changes of each canonical tensor reach storage; ``traces`` has every name and "".

    ``keep_copies``: also say what the dispatch hook expects of tensors that do not need it.
    """
    specs = catalogue.by_name()
    roots = {n: i for i, spec in enumerate(catalogue.tensors) for n in (spec.name, *spec.aliases)}
    links = find_links(traces)
    storages.guard(links.guards)
    found = {name: _find(name, roots.get(name, -1), trace, specs) for name, trace in traces.items()}
    regions = [region for entry in found.values() for region in entry.regions]
    overlaps = find_overlaps(regions, {name: links.root(name) for name in links.reasons})
    judge = _Judge(loader, traces, links, overlaps, storages)
    paths = {name: judge.path(specs[name], name, found[name]) for name in specs}
    links.reasons.update((name, path.reason) for name, path in paths.items() if path.method is Method.WHOLE)
    learned = {name for name, path in paths.items() if path.method is Method.LEARNED}
    hooked = {n for n, path in paths.items() if path.method is Method.HOOK or (keep_copies and n in learned)}
    refusals = {
        **unreached(regions, storages),
        **_outside(traces[""]),
        **_entangled(storages),
        **judge.known_refusals,
        **{name: path.refusal for name, path in paths.items() if path.refusal},
    }
    return PlacementTable(
        catalogue,
        storages,
        paths,
        {name: found[name].landings for name in paths if name in learned},
        {name: copies for name in paths if name in hooked and (copies := _copies(traces[name], storages))},
        links.together(),
        _constants(traces),
        streamable,
        refusals,
    )


def _find(name: str, root: int, trace: Trace, specs: dict[str, TensorSpec]) -> _Found:
    found = _Found()
    regions: list[Region] = []
    landings: list[Landing] = []
    for order, write in enumerate(trace.writes):
        placed: tuple[Landing, ...] = ()
        if write.source is not None:
            try:
                placed = landings_of(write, torch_dtype(specs[name].dtype))
                landings += placed
            except ConfigError as err:
                found.unmapped = found.unmapped or str(err)
        try:
            boxes = _boxes(placed) or targets_of(write)
            regions.append(Region(name, root, order, write, write.extent, boxes, placed=bool(placed)))
        except ConfigError as err:
            trace.refuse(f"a destination of it names one element twice: {err}")
    found.landings = tuple(dict.fromkeys(landings)) if len(landings) > 1 else tuple(landings)
    found.regions = tuple(regions)
    return found


def _boxes(landings: tuple[Landing, ...]) -> tuple[Box, ...]:
    return tuple(landing.box for landing in landings)


class _Judge:
    """Decides one tensor after another; equal answers of LEARNED are one object, layers being alike."""

    def __init__(
        self, loader: NativeLoader, traces: Traces, links: Links, overlaps: Overlaps, storages: Storages
    ) -> None:
        self._loader = loader
        self.known_refusals = loader.refusals()  # again: it may be of another mind since it loaded
        self._traces = traces
        self._links = links
        self._overlaps = overlaps
        self._storages = storages
        self._learned: dict[tuple[bool, Cover], RankPath] = {}

    def path(self, spec: TensorSpec, name: str, found: _Found) -> RankPath:
        """How ``name`` reaches this rank, or why it does not."""
        skipped = self._loader.skips(name)
        reaches = name in self._links.reasons or any(
            region.write.kind is not Kind.CONSTANT for region in found.regions
        )
        if refusal := self._refusal(name, found, skipped=skipped, reaches=reaches):
            return RankPath(PathClass.REFUSED, Method.NONE, refusal=refusal)
        if not reaches:
            return RankPath(PathClass.SKIP, Method.NONE, skipped=skipped)
        if reason := self._whole(spec, name, found):
            return RankPath(PathClass.XOR, Method.WHOLE, reason, cover=_everything(spec))
        if found.unmapped:
            return RankPath(PathClass.OVERWRITE, Method.HOOK, found.unmapped, cover=_sources(found))
        cover = cover_of(found.landings)
        exact = self._exact(name, found)
        if (path := self._learned.get((exact, cover))) is None:
            kind = PathClass.XOR if exact else PathClass.OVERWRITE
            path = self._learned[exact, cover] = RankPath(kind, Method.LEARNED, cover=cover)
        return path

    def _refusal(self, name: str, found: _Found, *, skipped: bool, reaches: bool) -> str:
        trace = self._traces[name]
        if reason := self.known_refusals.get(name):
            return reason
        if skipped:
            return "skips() says it is placed nowhere, but the loader copies it" if reaches else ""
        if trace.error or trace.refusal:
            return trace.error or trace.refusal
        if other := self._overlaps.conflicts.get(name):
            resident = self._storages[found.regions[0].write.storage].name
            by = other or "the loader itself"
            return f"its bytes in {resident!r} are also written by {by} with other contents"
        return ""

    def _whole(self, spec: TensorSpec, name: str, found: _Found) -> str:
        """Why only the plain loader can place it; empty if something cheaper can."""
        if reason := self._links.reasons.get(name) or self._traces[name].undecided:
            return reason
        if name in self._overlaps.clashes:
            return "its own writes overlap with different contents, so their order counts"
        trace = self._traces[name]
        if trace.takes_numbers and all(write.kind is not Kind.SCALAR for write in trace.writes):
            return "the loader takes values of it out of torch, which it may keep where nobody sees"
        hookable = not trace.reads_values and _hookable(trace, width_bytes(spec.dtype))
        return "" if hookable else found.unmapped

    def _exact(self, name: str, found: _Found) -> bool:
        """Whether each stored bit is written once and unchanged, so that masks and differences work."""
        repeated = any(_repeats(write) for write in self._traces[name].writes if write.source)
        plain = all(landing.preserving for landing in found.landings)
        return plain and not repeated and name not in self._overlaps.shared


def _repeats(write: Write) -> bool:
    source = write.source
    assert source is not None
    return any(n > 1 and s == 0 for n, s in zip(write.shape, source.strides, strict=True))


def _hookable(trace: Trace, width: int) -> bool:
    """Whether the dispatch hook sees each of its copies as one out of the scratch, and nothing else."""
    return all(
        write.source is not None and write.source.direct and write.source.dtype.itemsize == width
        for write in trace.writes
    )


def _sources(found: _Found) -> Cover:
    boxes = [box for region in found.regions for box in cover_of_source(region.write)]
    return tuple(dict.fromkeys(boxes))


def _everything(spec: TensorSpec) -> Cover:
    return ((0, ((spec.num_elements, 1),)),)


def _copies(trace: Trace, storages: Storages) -> tuple[Copy, ...]:
    writes = [write for write in trace.writes if write.kind is not Kind.CONSTANT]
    if any(write.source is None or not write.source.direct for write in writes):
        return ()
    return tuple(copy_of(write, storages) for write in writes)


def _constants(traces: Traces) -> tuple[Constant, ...]:
    found = []
    for name, trace in traces.items():
        writes = [write for write in trace.writes if write.kind is Kind.CONSTANT]
        for write, expected in zip(writes, trace.expected, strict=True):
            place = (write.storage, write.shape, write.strides, write.offset)
            found.append(Constant(name, *place, expected))
    return tuple(dict.fromkeys(found))


def _outside(trace: Trace) -> dict[str, str]:
    """What the loader does beyond any tensor and no method repeats."""
    return {"load()": trace.refusal} if trace.refusal else {}


def _entangled(storages: Storages) -> dict[str, str]:
    """Memory that is two storages at once: writes of one would be unseen in the other."""
    return {
        name: f"its storage begins inside that of {other!r}; make both views of one torch storage"
        for name, other in storages.overlapping().items()
    }
