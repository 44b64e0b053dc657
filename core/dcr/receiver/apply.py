"""Applies payloads, and restores versions, through the native loader (paper section 6, DESIGN R9-R13)."""

from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch

from dcr import observe
from dcr.codec import Item, Payload
from dcr.errors import AttemptFailed, IntegrityError, UnsupportedPath
from dcr.model import AuditTable, Bits, Catalogue, Classification, Encoding, PathClass, TensorSpec
from dcr.receiver.checks import casts_hold, check_items
from dcr.receiver.copy_hook import ApplyHook
from dcr.receiver.join import join
from dcr.receiver.lanes import dense_from_bits
from dcr.receiver.placement import PlacementTable
from dcr.receiver.ports import NativeLoader
from dcr.receiver.prewarm import learn
from dcr.receiver.rank import Method
from dcr.receiver.resident import Residents
from dcr.receiver.scratch import Scratch
from dcr.receiver.writer import ApplyStats, Cancelled, never

__all__ = ["Applier", "ApplyStats", "never"]


class Applier:
    """A ``Writer`` over a native loader. ``prewarm`` first; never used by two threads at once."""

    def __init__(self, loader: NativeLoader, catalogue: Catalogue) -> None:
        self._loader = loader
        self._catalogue = catalogue
        self._specs = catalogue.by_name()
        self._scratch = Scratch.for_tensors(catalogue.tensors)
        self._table: PlacementTable | None = None
        self._residents = Residents({})
        self._written: list[Item] = []

    @property
    def placement(self) -> PlacementTable:
        """What prewarm learned."""
        assert self._table is not None, "prewarm comes first"
        return self._table

    def prewarm(self) -> Classification:
        """Learn the loader's placement, once, and classify every canonical name (DESIGN R11).

        Raises:
            UnsupportedPath: a path breaks a condition; names each tensor. Nothing was written.
        """
        if self._table is not None:
            return dict(self._table.classes)
        table = learn(self._loader, self._catalogue, keep_copies=True)
        table.require_supported()
        join([table.rank_placement], self._specs).require_supported()
        if whole := [name for name, path in table.paths.items() if path.method is Method.WHOLE]:
            raise UnsupportedPath(f"{whole[0]}: {table.paths[whole[0]].reason}; use dense refits")
        self._table = table
        self._residents = Residents(self._loader.resident())
        return dict(table.classes)

    def begin(self) -> None:
        """Forget what earlier attempts wrote: ``check`` covers what is applied from here on."""
        self._written.clear()

    def validate(self, payload: Payload, *, allow_xor: bool) -> None:
        """Check every item against catalogue and classification, before anything is written.

        Raises:
            AttemptFailed: names the tensor and the field.
        """
        for item in payload.items:
            self._validate(item, allow_xor=allow_xor)

    def apply(self, payload: Payload, *, allow_xor: bool = True, cancelled: Cancelled = never) -> ApplyStats:
        """Apply all items of one payload with one streamed ``load_weights`` call.

        ``allow_xor`` false is the receiver's own rule for torn storage (P8). ``cancelled`` is
        asked between items; an item that has begun is either finished or fails the attempt.

        Raises:
            AttemptFailed: an item is not acceptable, the loader broke a condition, or cancelled.
        """
        self.validate(payload, allow_xor=allow_xor)
        self._require_unmoved()
        placed = [item for item in payload.items if item.num_entries and not self._skipped(item.name)]
        self._load(placed, cancelled)
        self._require_unmoved()
        skipped = sum(self._skipped(item.name) for item in payload.items)
        return ApplyStats(len(payload.items), skipped, sum(item.num_entries for item in placed))

    def synchronize(self) -> None:
        """Wait for the device and the runtime's post-load step."""
        self._loader.synchronize()

    def check(self) -> None:
        """Prove by reading that everything applied since ``begin`` is in place (DESIGN R13).

        Raises:
            AttemptFailed: names the tensor that does not hold its target bits.
        """
        self._require_unmoved()
        check_items(self.placement, self._written)

    def restore(self, tensors: dict[str, Bits], table: AuditTable, *, cancelled: Cancelled = never) -> None:
        """Load a whole version densely with the plain native loader and prove it by audit.

        ``tensors`` holds flat bits [num_elements] by primary name; tied names get the same bits.

        Raises:
            IntegrityError: a tensor is missing, or resident bits are not those of ``table``.
            UnsupportedPath: the loader rebinds its storage.
            AttemptFailed: cancelled; the storage is torn.
        """
        self._written.clear()
        with torch.no_grad():
            self._loader.load(self._dense(tensors, cancelled))
        self._loader.synchronize()
        if moved := self._residents.moved(self._loader.resident()):
            raise UnsupportedPath(
                f"a dense load rebinds resident {moved!r}; prewarm no longer holds: restart"
            )
        self._prove(tensors, table)

    def audit(self) -> AuditTable:
        """Digest of each tensor that can be read back completely, from resident storage (B6).

        Raises:
            IntegrityError: two resident copies of one tensor differ, or storage was rebound.
        """
        if moved := self._residents.moved(self._loader.resident()):
            raise IntegrityError(f"resident {moved!r} was rebound since prewarm; restart this runtime")
        return self.placement.audit_table(self._catalogue.audit_key)

    def _skipped(self, name: str) -> bool:
        return self.placement.skipped(name)

    def _placed_names(self) -> Iterator[tuple[str, TensorSpec]]:
        """Every name that this rank's loader places, tied names on their own."""
        return ((name, spec) for name, spec in self._specs.items() if not self._skipped(name))

    def _validate(self, item: Item, *, allow_xor: bool) -> None:
        if item.name not in self._specs:
            raise AttemptFailed(f"{item.name}: the catalogue has no such tensor")
        spec = self._specs[item.name]
        if (tuple(item.shape), item.dtype) != (spec.shape, spec.dtype):
            raise AttemptFailed(
                f"{item.name}: the item is {item.dtype} {tuple(item.shape)}, the catalogue says "
                f"{spec.dtype} {spec.shape}; a changed shape or dtype needs a new run"
            )
        if spec.dtype == "bool" and item.num_entries and int(item.values.max()) > 1:
            raise AttemptFailed(f"{item.name}: {int(item.values.max()):#x} is not the stored form of a bool")
        if item.encoding is Encoding.XOR:
            self._validate_xor(item, allow_xor=allow_xor)

    def _validate_xor(self, item: Item, *, allow_xor: bool) -> None:
        if not allow_xor:
            raise AttemptFailed(f"{item.name}: XOR onto storage that an earlier attempt may have torn (P8)")
        path = self.placement.classes[item.name]
        if path not in (PathClass.XOR, PathClass.SKIP):
            raise AttemptFailed(f"{item.name}: its loader path takes {path.value} only, not XOR")

    def _load(self, items: list[Item], cancelled: Cancelled) -> None:
        hook = ApplyHook(self._residents, self._scratch)
        progress = _Progress()
        steps = self._steps(hook, items, cancelled, progress)
        try:
            with torch.no_grad():
                self._feed(hook, steps)
        finally:
            steps.close()  # clears the scratch now, not when the traceback that holds the frame dies
        self._require_done(hook, progress, items)

    def _feed(self, hook: ApplyHook, steps: Iterator[tuple[str, torch.Tensor]]) -> None:
        if self.placement.streamable:
            with hook:
                self._loader.load(steps)
            return
        for step in steps:
            with hook:
                self._loader.load([step])
            if hook.failure is not None:
                return

    def _require_done(self, hook: ApplyHook, progress: "_Progress", items: list[Item]) -> None:
        if hook.failure is not None:  # the loader swallowed it
            raise hook.failure
        if items and not progress.finished:
            raise AttemptFailed(f"{hook.item}: the loader stopped before the end of the stream")

    def _steps(
        self, hook: ApplyHook, items: list[Item], cancelled: Cancelled, progress: "_Progress"
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Scratch contents one after another; each is checked when the loader asks for the next."""
        for item in items:
            if cancelled():
                raise AttemptFailed(f"{item.name}: the attempt was stopped before this item")
            observe.point("receiver.item.before", tensor=item.name, encoding=item.encoding.value)
            self._written.append(item)
            spec = self._specs[item.name]
            self._scratch.fill(spec, item.encoding, item.locations, item.values)
            try:
                hook.begin(item.name, item.encoding, self.placement.copies[item.name])
                yield item.name, self._scratch.view(spec)
                hook.end()
            finally:
                self._scratch.clear(spec, item.locations)
            observe.point("receiver.item.after", tensor=item.name, encoding=item.encoding.value)
        progress.finished = True

    def _dense(self, tensors: dict[str, Bits], cancelled: Cancelled) -> Iterator[tuple[str, torch.Tensor]]:
        for name, spec in self._placed_names():
            if cancelled():
                raise AttemptFailed(f"{name}: the restore was stopped before this tensor")
            yield name, dense_from_bits(spec, _bits_of(tensors, spec))

    def _prove(self, tensors: dict[str, Bits], table: AuditTable) -> None:
        resident = self.placement.audit_table(self._catalogue.audit_key)
        for name, spec in self._placed_names():
            if name in resident and resident[name] != table.get(name):
                raise IntegrityError(
                    f"{name}: restored bits have the audit digest {resident[name]}, "
                    f"the record's table says {table.get(name)}"
                )
            everything = torch.ones(spec.num_elements, dtype=torch.bool)
            if where := casts_hold(self.placement, name, spec, _bits_of(tensors, spec), everything):
                raise IntegrityError(f"{name}: {where!r} does not hold the cast of the restored tensor")

    def _require_unmoved(self) -> None:
        if moved := self._residents.moved(self._loader.resident()):
            raise AttemptFailed(f"resident {moved!r} was rebound since prewarm; restart this runtime")


@dataclass(slots=True)
class _Progress:
    """Whether the loader consumed a stream to its end."""

    finished: bool = False


def _bits_of(tensors: dict[str, Bits], spec: TensorSpec) -> Bits:
    if spec.name not in tensors:
        raise IntegrityError(f"{spec.name}: the restored version does not contain this tensor")
    return tensors[spec.name]
