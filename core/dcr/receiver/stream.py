"""Items through the runtime's own loader and the dispatch hook: the paper's path (section 6.1, DESIGN R9)."""

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from dcr import observe
from dcr.codec import Item
from dcr.errors import AttemptFailed
from dcr.model import TensorSpec
from dcr.receiver.copy_hook import ApplyHook
from dcr.receiver.placement import PlacementTable
from dcr.receiver.ports import NativeLoader
from dcr.receiver.scratch import Scratch
from dcr.receiver.writer import Cancelled


class HookStream:
    """Feeds items to ``loader``, one scratch for all. ``specs`` are those of the names that come here."""

    def __init__(self, loader: NativeLoader, table: PlacementTable, specs: Mapping[str, TensorSpec]) -> None:
        self._loader = loader
        self._table = table
        self._specs = specs
        self._scratch = Scratch.for_tensors(tuple(specs.values()))

    def apply(self, items: Sequence[Item], cancelled: Cancelled) -> None:
        """Write ``items`` with one streamed ``load`` call, or one a tensor where prewarm says so.

        Raises:
            AttemptFailed: the loader broke a condition, or cancelled before an item.
        """
        hook = ApplyHook(self._table.storages, self._scratch)
        progress = _Progress()
        steps = self._steps(hook, items, cancelled, progress)
        try:
            with torch.no_grad():
                self._feed(hook, steps)
        finally:
            steps.close()  # clears the scratch now, not when the traceback that holds the frame dies
        if hook.failure is not None:  # the loader swallowed it
            raise hook.failure
        if items and not progress.finished:
            raise AttemptFailed(f"{hook.item}: the loader stopped before the end of the stream")

    def _feed(self, hook: ApplyHook, steps: Iterator[tuple[str, torch.Tensor]]) -> None:
        if self._table.streamable:
            with hook:
                self._loader.load(steps)
            return
        for step in steps:
            with hook:
                self._loader.load([step])
            if hook.failure is not None:
                return

    def _steps(
        self, hook: ApplyHook, items: Sequence[Item], cancelled: Cancelled, progress: "_Progress"
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """Scratch contents one after another; each is checked when the loader asks for the next."""
        for item in items:
            if cancelled():
                raise AttemptFailed(f"{item.name}: the attempt was stopped before this item")
            observe.point("receiver.item.before", tensor=item.name, encoding=item.encoding.value)
            spec = self._specs[item.name]
            self._scratch.fill(spec, item.encoding, item.positions, item.values)
            try:
                hook.begin(item.name, item.encoding, self._table.copies[item.name])
                yield item.name, self._scratch.view(spec)  # fresh: loaders leave attributes on theirs
                hook.end()
            finally:
                self._scratch.clear(spec, item.positions)
            observe.point("receiver.item.after", tensor=item.name, encoding=item.encoding.value)
        progress.finished = True


@dataclass(slots=True)
class _Progress:
    """Whether the loader consumed a stream to its end."""

    finished: bool = False
