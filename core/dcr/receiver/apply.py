"""Applies payloads to one rank's storage, reads it back and restores it (paper section 6, DESIGN R9-R13, B2).

Every tensor goes the way that prewarm chose: scattered through the placement map, through the native
loader and the dispatch hook, or into a host copy that the plain native loader takes whole.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from dcr import observe
from dcr.codec import Item, Limits, Payload
from dcr.errors import AttemptFailed, IntegrityError, UnsupportedPath
from dcr.model import Bits, Catalogue, TensorSpec
from dcr.receiver.checks import check_items
from dcr.receiver.digester import Digester
from dcr.receiver.instance import InstanceWriter
from dcr.receiver.intake import Intake, Taken
from dcr.receiver.lanes import dense_from_bits
from dcr.receiver.methods import MethodName, RankMap, rank_map
from dcr.receiver.ports import NativeLoader
from dcr.receiver.prewarm import learn
from dcr.receiver.rank import Cover, Method, PartDigests, Partials, PartTable, RankPlacement
from dcr.receiver.readback import RankReader
from dcr.receiver.rehearsal import unlike_reloaded
from dcr.receiver.scatter.engine import EngineName, engine_for
from dcr.receiver.shadows import Shadows
from dcr.receiver.spread import groups
from dcr.receiver.stream import HookStream
from dcr.receiver.warm import warm_up
from dcr.receiver.writer import PADDING, ApplyStats, Cancelled, Slice, never
from dcr.receiver.written import Written

__all__ = ["Applier", "ApplyStats", "RankApplier", "never"]

REHEARSED_BYTES = 1 << 28
"""Of canonical tensors loaded again at once to prove them: the storages that they reach are copied."""


class RankApplier:
    """Implements ``RankPort`` over a native loader in this process; never used by two threads at once.

    ``method`` and ``engine`` are for tests and measurements: the hook instead of the map wherever it
    can see the loader's copies, and one engine for all batches.
    """

    def __init__(
        self,
        loader: NativeLoader,
        catalogue: Catalogue,
        *,
        method: MethodName = "auto",
        engine: EngineName = "auto",
    ) -> None:
        self._loader = loader
        self._catalogue = catalogue
        self._specs = catalogue.by_name()
        self._method: MethodName = method
        self._engine: EngineName = engine
        self._map: RankMap | None = None
        self._digester = Digester.of(catalogue.audit_key, self._specs, {})
        self._shadows = Shadows({}, {})
        self._stream: HookStream | None = None
        self._written = Written(Limits.of_catalogue(catalogue))
        self._intake: Intake | None = None
        self._unloaded: dict[str, None] = {}

    @property
    def map(self) -> RankMap:
        """What prewarm learned and chose."""
        assert self._map is not None, "prewarm comes first"
        return self._map

    def prewarm(self) -> RankPlacement:
        """See ``RankPort``. Raises UnsupportedPath where the loader leaves storage changed."""
        if self._map is None or self.rebuilt():
            self._map = None
            table = learn(self._loader, self._catalogue, keep_copies=self._method == "hook")
            learned = rank_map(table, self._method)
            shadows = Shadows({name: learned.paths[name].cover for name in learned.shadowed}, self._specs)
            shadows.adopt(self._shadows)
            hooked = learned.specs_of(Method.HOOK)
            self._stream = HookStream(self._loader, table, hooked) if hooked else None
            self._map, self._shadows = learned, shadows
            self._intake = Intake(learned, self._specs)
            if learned.placed.plan.on_host:
                warm_up(RankApplier, self._catalogue)
        return self.map.placement

    def divide(self, parts: Mapping[str, tuple[Cover, ...]]) -> None:
        """See ``RankPort``."""
        self._digester = Digester.of(self._catalogue.audit_key, self._specs, parts)

    def rebuilt(self) -> str:
        """See ``RankPort``; what could not be learned does not hold either."""
        if self._map is None:
            return "nothing is learned: prewarm failed or was never asked for"
        moved = self.map.table.storages.moved(self._loader.resident())
        return f"resident {moved!r} was rebound, rebuilt or changed since prewarm" if moved else ""

    def begin(self, *, clean: bool) -> None:
        """See ``RankPort``; the map is as good in torn storage, as long as it holds."""
        self._written.clear()
        self._require_unmoved()

    def apply(self, payload: Payload, *, allow_xor: bool = True, cancelled: Cancelled = never) -> ApplyStats:
        """Write what this rank holds of every item. ``allow_xor`` false: nothing that builds on storage (P8).

        ``cancelled`` is asked between items, on a map between small groups of them. What has begun is
        either finished or fails the attempt.

        Raises:
            AttemptFailed: an item is not acceptable, the loader broke a condition, or cancelled.
        """
        assert self._intake is not None, "prewarm comes first"
        taken = self._intake.take(payload, allow_xor=allow_xor)
        if gone := self.map.table.storages.gone():  # begin and check look for more; this guards the memory
            raise AttemptFailed(f"resident {gone!r} was freed or moved during the attempt")
        self._written.add(taken, allow_xor=allow_xor)
        self._scatter(taken, cancelled)
        self._shadow(taken.items(Method.WHOLE), cancelled)
        if hooked := taken.items(Method.HOOK):
            self._feed(hooked, cancelled)
        nowhere = taken.going(Method.NONE)
        num_values = int(taken.columns.nums[~nowhere].sum())
        return ApplyStats(len(payload.items), int(nowhere.sum()), num_values)

    def synchronize(self) -> None:
        """See ``RankPort``."""
        if self._unloaded:
            with torch.no_grad():
                self._loader.load(self._shadows.dense(self.map.together(self._unloaded)))
            self._unloaded.clear()
        self._loader.synchronize()

    def check(self) -> Partials:
        """See ``RankPort``; what it has proven is let go, for payloads are large beside a serving model."""
        self._require_unmoved()
        assert self._intake is not None, "prewarm comes first"
        groups = self._written.groups(self._intake) if self._shadows else ()
        held = (item.name for group in groups for taken in group for _, item in taken.held())
        names = {name: None for name in held if name in self._shadows}
        if wrong := self._unlike_reloaded(names):
            raise AttemptFailed(f"{', '.join(names)}: {wrong} do not hold what the loader makes of them")
        partials: Partials = {}
        for group in self._written.groups(self._intake):
            partials |= check_items(
                group,
                placed=self.map.placed,
                shadows=self._shadows,
                digester=self._digester,
                engine=self._engine,
            )
        self._written.clear()
        return partials

    def restore(self, tensors: Mapping[str, Bits], *, cancelled: Cancelled = never) -> None:
        """See ``RankPort``; also raises IntegrityError if a tensor is missing."""
        self._written.clear()
        self._unloaded.clear()
        self._shadows.forget()
        with torch.no_grad():
            self._loader.load(self._dense(tensors, cancelled))
        self._loader.synchronize()
        if reason := self.rebuilt():
            raise UnsupportedPath(f"after a dense load {reason}; learn and restore again")
        self._shadows.keep(tensors)
        wrong = self._reader().unlike(tensors) + self._unlike_reloaded(self._shadows)
        if wrong:
            shown = f"{', '.join(wrong[:8])}{f' and {len(wrong) - 8} more' if len(wrong) > 8 else ''}"
            raise UnsupportedPath(
                f"{shown}: storage does not hold what the loader was given; the runtime repacks it after "
                "loading. Use dense refits, or have the adapter undo the repacking"
            )

    def audit(self) -> PartTable:
        """See ``RankPort``."""
        self._require_readable(list(self._shadows))
        self._require_padding()
        reader = self._reader()
        return {
            name: reader.digest(name, self._digester, 0, spec.num_elements)
            for name, spec in self._specs.items()
            if reader.holds(name)
        }

    def scan(self, slices: Sequence[Slice]) -> list[PartDigests]:
        """See ``RankPort``. A tensor without a map costs a pass of the loader over it, whatever the slice."""
        self._require_readable([s.name for s in slices if s.name in self._shadows])
        if PADDING in slices:
            self._require_padding()
        reader = self._reader()
        return [
            reader.digest(s.name, self._digester, s.start, s.stop)
            if s != PADDING and reader.holds(s.name)
            else ()
            for s in slices
        ]

    def _scatter(self, taken: Taken, cancelled: Cancelled) -> None:
        """Through the map, in groups: each is announced, written at once, and announced again."""
        placed, items = self.map.placed, taken.payload.items
        num_entries = int(taken.columns.nums[taken.going(Method.LEARNED)].sum())
        for group, write in groups(taken, placed, engine_for(self._engine, placed.plan, num_entries)):
            if cancelled():
                raise AttemptFailed(f"{items[group[0]].name}: the attempt was stopped before this item")
            for i in group if observe.heard() else ():
                observe.point("receiver.item.before", tensor=items[i].name, encoding=items[i].encoding.value)
            write()
            for i in group if observe.heard() else ():
                observe.point("receiver.item.copy", tensor=items[i].name)
                observe.point("receiver.item.after", tensor=items[i].name, encoding=items[i].encoding.value)

    def _shadow(self, items: Sequence[Item], cancelled: Cancelled) -> None:
        """Into the host copies; ``synchronize`` loads them."""
        for item in items:
            if cancelled():
                raise AttemptFailed(f"{item.name}: the attempt was stopped before this item")
            observe.point("receiver.item.before", tensor=item.name, encoding=item.encoding.value)
            self._shadows.apply(item)
            self._unloaded[item.name] = None
            observe.point("receiver.item.copy", tensor=item.name)
            observe.point("receiver.item.after", tensor=item.name, encoding=item.encoding.value)

    def _feed(self, items: Sequence[Item], cancelled: Cancelled) -> None:
        """Through the loader; tensors that cannot be read back change their host copies too."""
        assert self._stream is not None
        for item in items:
            if item.name in self._shadows:
                self._shadows.apply(item)
        self._stream.apply(items, cancelled)
        self._require_unmoved()

    def _dense(self, tensors: Mapping[str, Bits], cancelled: Cancelled) -> Iterator[tuple[str, torch.Tensor]]:
        """Every name that this rank's loader places, tied names on their own, in memory of its own.

        A loader may change what it is given, and other names, ranks and the proof share ``tensors``.
        """
        for name, spec in self._specs.items():
            if self.map.paths[name].method is not Method.NONE:
                if cancelled():
                    raise AttemptFailed(f"{name}: the restore was stopped before this tensor")
                yield name, dense_from_bits(spec, _bits_of(tensors, spec).copy())

    def _reader(self) -> RankReader:
        return RankReader(self.map, self._shadows)

    def _unlike_reloaded(self, names: Iterable[str]) -> list[str]:
        wrong: dict[str, None] = {}
        for batch in self.map.batches(names, REHEARSED_BYTES):
            weights = self._shadows.dense(batch)
            wrong |= dict.fromkeys(unlike_reloaded(self._loader, self.map.table.storages, weights))
        return list(wrong)

    def _require_readable(self, shadowed: Sequence[str]) -> None:
        self._require_unmoved()
        if wrong := self._unlike_reloaded(shadowed):
            raise IntegrityError(
                f"{', '.join(wrong)}: storage does not hold what the loader makes of its weights"
            )

    def _require_padding(self) -> None:
        for padding in self.map.paddings:
            padding.require(self.map.table.storages)

    def _require_unmoved(self) -> None:
        if reason := self.rebuilt():
            raise AttemptFailed(f"{reason}; it must be learned and proven again")


class Applier(InstanceWriter):
    """The ``Writer`` of a runtime whose only rank is in this process."""

    def __init__(
        self,
        loader: NativeLoader,
        catalogue: Catalogue,
        *,
        method: MethodName = "auto",
        engine: EngineName = "auto",
    ) -> None:
        self.rank = RankApplier(loader, catalogue, method=method, engine=engine)
        super().__init__([self.rank], catalogue)


def _bits_of(tensors: Mapping[str, Bits], spec: TensorSpec) -> Bits:
    if spec.name not in tensors:
        raise IntegrityError(f"{spec.name}: the restored version does not contain this tensor")
    return tensors[spec.name]
